/* Why this exists: every field of every family's config.json, each one row: used (it sets a member of struct
 * model_conf), read later (where others decide what it means), fixed (only the value that the arithmetic here has is
 * accepted), metadata (cannot change the arithmetic), or a warning (asks for code to be run, which never happens).
 * Whatever has no row is an error, so a model that needs something else is never trained as something it is not. */
#include "conf/family.h"

#define AT(member) offsetof(struct model_conf, member)
#define NO_ATTENTION_DROPOUT "attention dropout is not supported"
#define NO_DROPOUT "dropout of this family is not in this version"
#define SIZE(names_, families_, member, most_)                                                                         \
    .names = (names_), .families = (families_), .offset = AT(member), .least = 1, .most = (most_)
#define REAL(names_, families_, member, high_)                                                                         \
    .names = (names_), .families = (families_), .use = FIELD_REAL, .offset = AT(member), .high = (high_)
#define LATER(names_, families_, help_) .names = (names_), .families = (families_), .use = FIELD_LATER, .help = (help_)
#define FIXED(names_, families_, accepted_, why_)                                                                      \
    .names = (names_), .families = (families_), .use = FIELD_FIXED, .accepted = (accepted_), .why = (why_)
#define KV_GIVEN (FOR(MISTRAL) | FOR_QWEN | FOR(SMOLLM3)) /* transformers assumes a number, not num_attention_heads */
#define KV_NUMBER (FOR_GEMMA | FOR(STARCODER2))           /* and null is no number */
#define KV_OPTIONAL (FOR(LLAMA) | FOR(PHI3) | FOR(OLMO2))
#define HEAD_DIM_NUMBER (FOR(QWEN3) | FOR_GEMMA)
#define SILU_ONLY (FOR_RMS & ~FOR_GEMMA)
#define GELU_TANH "gelu_pytorch_tanh|gelu_new|gelu_fast"

const struct field model_fields[] = {
    { .names = "model_type", .families = FOR_ALL, .use = FIELD_META },
    { SIZE("n_layer num_hidden_layers", FOR(GPT2), layers, MODEL_LAYERS_MAX), .required = true },
    { SIZE("n_embd hidden_size", FOR(GPT2), hidden, WIDTH_MAX), .required = true },
    { SIZE("n_head num_attention_heads", FOR(GPT2), heads, WIDTH_MAX), .required = true },
    { SIZE("n_positions max_position_embeddings", FOR(GPT2), positions, POSITIONS_MAX), .required = true },
    { SIZE("n_inner", FOR(GPT2), ffn, FFN_MAX), .may_be_null = true },
    { REAL("layer_norm_epsilon", FOR(GPT2), norm_eps, 1) },
    { .names = "activation_function",
      .families = FOR(GPT2),
      .use = FIELD_ACTIVATION,
      .offset = AT(activation),
      .accepted = GELU_TANH "|gelu",
      .why = "gpt2 here has GELU" },
    { .names = "resid_pdrop",
      .families = FOR(GPT2) | FOR(PHI3),
      .use = FIELD_RATE,
      .offset = AT(resid_dropout),
      .may_be_null = true },
    { .names = "embd_pdrop",
      .families = FOR(GPT2),
      .use = FIELD_RATE,
      .offset = AT(embd_dropout),
      .may_be_null = true },
    { FIXED("attn_pdrop", FOR(GPT2), "0.0|null", NO_ATTENTION_DROPOUT) },
    { FIXED("scale_attn_weights", FOR(GPT2) | FOR(STARCODER2), "true",
            "attention here is scaled by the root of head_dim") },
    { FIXED("scale_attn_by_inverse_layer_idx reorder_and_upcast_attn add_cross_attention", FOR(GPT2), "false",
            "this form of attention is not in this version") },

    { SIZE("num_hidden_layers", FOR_ROTARY, layers, MODEL_LAYERS_MAX), .required = true },
    { SIZE("hidden_size", FOR_ROTARY, hidden, WIDTH_MAX), .required = true },
    { SIZE("num_attention_heads", FOR_ROTARY, heads, WIDTH_MAX), .required = true },
    { SIZE("num_key_value_heads", KV_OPTIONAL, kv_heads, WIDTH_MAX), .may_be_null = true },
    { SIZE("num_key_value_heads", KV_GIVEN, kv_heads, WIDTH_MAX), .may_be_null = true, .required = true },
    { SIZE("num_key_value_heads", KV_NUMBER, kv_heads, WIDTH_MAX), .required = true },
    { SIZE("head_dim", FOR_ROTARY & ~(HEAD_DIM_NUMBER | FOR(NEOX)), head_dim, WIDTH_MAX), .may_be_null = true },
    { SIZE("head_dim", HEAD_DIM_NUMBER, head_dim, WIDTH_MAX) },
    { SIZE("intermediate_size", FOR_ROTARY, ffn, FFN_MAX), .required = true },
    { SIZE("max_position_embeddings", FOR_ROTARY, positions, POSITIONS_MAX), .required = true },

    { REAL("rms_norm_eps", FOR_RMS, norm_eps, 1) },
    { REAL("norm_epsilon layer_norm_epsilon", FOR(STARCODER2), norm_eps, 1) },
    { REAL("layer_norm_eps", FOR(NEOX), norm_eps, 1) },
    { REAL("rope_theta", FOR_ROTARY & ~FOR(NEOX), rope.theta, 1e12) },
    { REAL("rotary_emb_base rope_theta", FOR(NEOX), rope.theta, 1e12) },
    { REAL("rope_local_base_freq", FOR(GEMMA3), local_rope.theta, 1e12) },
    { LATER("rope_scaling", FOR_ROTARY, "null, or a mapping with rope_type (or type)") },
    { LATER("rope_parameters", FOR_ROTARY, "the same, with rope_theta") },
    { LATER("original_max_position_embeddings", FOR_ROTARY, "whole number, or null") },
    { LATER("partial_rotary_factor", FOR(PHI3), "number in (0, 1]") },
    { LATER("rotary_pct partial_rotary_factor", FOR(NEOX), "number in (0, 1]") },
    { FIXED("partial_rotary_factor", FOR_ROTARY & ~(FOR(PHI3) | FOR(NEOX)), "1.0|null",
            "this family rotates whole heads") },
    { FIXED("rope_interleaved", FOR(LLAMA), "false|null", "positions here rotate the halves of a head") },

    { .names = "hidden_act",
      .families = SILU_ONLY,
      .use = FIELD_ACTIVATION,
      .offset = AT(activation),
      .accepted = "silu|swish",
      .why = "this family here has SiLU" },
    { .names = "hidden_activation",
      .families = FOR_GEMMA,
      .use = FIELD_ACTIVATION,
      .offset = AT(activation),
      .accepted = GELU_TANH,
      .why = "this family here has the tanh form of GELU" },
    { FIXED("hidden_act", FOR_GEMMA, "gelu_pytorch_tanh|gelu_new|null", "the activation is hidden_activation") },
    { .names = "hidden_act",
      .families = FOR(STARCODER2) | FOR(NEOX),
      .use = FIELD_ACTIVATION,
      .offset = AT(activation),
      .accepted = GELU_TANH "|gelu",
      .why = "this family here has GELU" },

    { .names = "attention_bias",
      .families = FOR(LLAMA) | FOR(QWEN3) | FOR_GEMMA | FOR(OLMO2) | FOR(SMOLLM3) | FOR(NEOX),
      .use = FIELD_FLAG,
      .offset = AT(qkv_bias),
      .also = { AT(out_bias) } },
    { FIXED("attention_bias", FOR(MISTRAL) | FOR(PHI3), "false|null", "attention of this family has no biases") },
    { .names = "mlp_bias", .families = FOR(LLAMA) | FOR(SMOLLM3), .use = FIELD_FLAG, .offset = AT(mlp_bias) },
    { .names = "use_bias",
      .families = FOR(STARCODER2),
      .use = FIELD_FLAG,
      .offset = AT(qkv_bias),
      .also = { AT(out_bias), AT(mlp_bias) } },
    { .names = "use_parallel_residual", .families = FOR(NEOX), .use = FIELD_FLAG, .offset = AT(parallel_residual) },

    { FIXED("attention_dropout", FOR_ROTARY, "0.0|null", NO_ATTENTION_DROPOUT) },
    { FIXED("attention_probs_dropout_prob", FOR(NEOX), "0.0|null", NO_ATTENTION_DROPOUT) },
    { FIXED("hidden_dropout hidden_dropout_prob", FOR(NEOX), "0.0|null", NO_DROPOUT) },
    { FIXED("embd_pdrop", FOR(PHI3), "0.0|null", NO_DROPOUT) },
    { .names = "residual_dropout", .families = FOR(STARCODER2), .use = FIELD_RATE, .offset = AT(resid_dropout) },
    { .names = "embedding_dropout", .families = FOR(STARCODER2), .use = FIELD_RATE, .offset = AT(embd_dropout) },

    { FIXED("sliding_window", FOR(LLAMA) | FOR(OLMO2), "null", "attention of this family sees all earlier tokens") },
    { LATER("sliding_window", FOR_ROTARY & ~(FOR(LLAMA) | FOR(OLMO2) | FOR(NEOX)),
            "whole number, or null (not for gemma)") },
    { LATER("use_sliding_window", FOR_QWEN | FOR(SMOLLM3), "true or false") },
    { LATER("max_window_layers", FOR_QWEN, "whole number: layers from this one on have the window") },
    { LATER("layer_types", FOR_QWEN | FOR_GEMMA | FOR(SMOLLM3),
            "a list with full_attention or sliding_attention for each layer") },
    { FIXED("sliding_window_pattern", FOR(GEMMA2), "2|null", "every second layer of gemma2 has the window") },
    { LATER("sliding_window_pattern _sliding_window_pattern", FOR(GEMMA3),
            "whole number n: all but each n-th layer have the window") },
    { LATER("query_pre_attn_scalar", FOR_GEMMA, "whole number: scores are divided by its root") },
    { .names = "attn_logit_softcapping",
      .families = FOR(GEMMA2),
      .use = FIELD_CAP,
      .offset = AT(attention_cap),
      .high = 1e6 },
    { FIXED("attn_logit_softcapping", FOR(GEMMA3), "null", "gemma3 does not cap scores") },
    { .names = "final_logit_softcapping",
      .families = FOR_GEMMA,
      .use = FIELD_CAP,
      .offset = AT(final_cap),
      .high = 1e6 },
    { FIXED("use_bidirectional_attention", FOR_GEMMA, "false|null", "this version has decoders") },
    { LATER("no_rope_layers", FOR(SMOLLM3), "a list with 0 for each layer without positions, 1 for others") },
    { LATER("no_rope_layer_interval", FOR(SMOLLM3), "whole number n: each n-th layer has no positions") },

    { FIXED("pretraining_tp", FOR(LLAMA), "1", "it changes the order of sums") },
    { FIXED("mlp_type", FOR(STARCODER2), "default", "other feed-forward layers are not in this version") },
    { FIXED("norm_type", FOR(STARCODER2), "layer_norm", "starcoder2 here has LayerNorm") },
    { FIXED("attention_softmax_in_fp32 scale_attention_softmax_in_fp32", FOR(STARCODER2), "true",
            "softmax here is fp32") },
    { .names = "activation_function", .families = FOR(STARCODER2), .use = FIELD_META }, /* hidden_act says it */
    { .names = "pretraining_tp", .families = FOR_ROTARY & ~FOR(LLAMA), .use = FIELD_META },
    { .names = "max_window_layers", .families = FOR(SMOLLM3), .use = FIELD_META },
    { .names = "classifier_dropout", .families = FOR(NEOX), .use = FIELD_META },

    { .names = "vocab_size",
      .families = FOR_ALL,
      .offset = AT(vocab),
      .least = 2,
      .most = VOCAB_MAX,
      .required = true },
    { REAL("initializer_range", FOR_ALL, initializer_range, 100) },
    { .names = "tie_word_embeddings", .families = FOR_ALL, .use = FIELD_FLAG, .offset = AT(tied) },
    { .names = "bos_token_id", .families = FOR_ALL, .use = FIELD_TOKEN, .offset = AT(bos_token_id) },
    { .names = "eos_token_id", .families = FOR_ALL, .use = FIELD_TOKEN, .offset = AT(eos_token_id) },
    { FIXED("quantization quantization_config", FOR_ALL, "null", "quantised weights are not in this version") },
    { FIXED("is_encoder_decoder tie_encoder_decoder", FOR_ALL, "false|null", "this version has decoders") },
    { FIXED("gradient_checkpointing", FOR_ALL, "false|null", "it is a key of the run: write it beside model") },
    { FIXED("chunk_size_feed_forward", FOR_ALL, "0|null", "the feed-forward layer is not cut into chunks here") },
    { .names = "pruned_heads", .families = FOR_ALL, .use = FIELD_META },
    { .names =
          "architectures torch_dtype dtype transformers_version use_cache _name_or_path name_or_path pad_token_id "
          "sep_token_id cls_token_id unk_token_id decoder_start_token_id task_specific_params problem_type id2label "
          "label2id num_labels return_dict return_dict_in_generate output_attentions output_hidden_states "
          "output_scores is_decoder tokenizer_class finetuning_task prefix n_ctx summary_type summary_use_proj "
          "summary_activation summary_first_dropout summary_proj_to_labels max_length min_length do_sample temperature "
          "top_k top_p repetition_penalty use_bfloat16 torchscript _commit_hash license cache_implementation "
          "is_llama_config transformers.js_config unsloth_version unsloth_fixed",
      .families = FOR_ALL,
      .use = FIELD_META },
    { .names = "auto_map trust_remote_code _attn_implementation _attn_implementation_internal "
               "_attn_implementation_autoset attn_implementation custom_pipelines",
      .families = FOR_ALL,
      .use = FIELD_WARN,
      .why = "code named by a model is never run; the architecture is Invar's own" },
};
const size_t model_field_count = sizeof(model_fields) / sizeof(model_fields[0]);
_Static_assert(sizeof(model_fields) / sizeof(model_fields[0]) <= MODEL_FIELDS_MAX, "a parser has a place for each");
