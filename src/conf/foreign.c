/* Why this exists: a key that another system knows must neither be ignored (the run would not do what its file says)
 * nor be called unknown (it is spelt right). Each row says which value asks for nothing, why others are refused, and
 * where there is one, what to write instead. Part of the table of keys.
 * A key that says what one here says in other words is a translation, below. */
#include "conf/conf_int.h"

#define ONE_WAY "there is one way to exchange data between ranks here, and nothing to tune about it"
#define STAGES "stages are given as a list here"
#define WORLD "mpirun or srun says how many ranks run where"
#define FP32 "this version computes in fp32 or, with bf16: true, in bf16"
#define ADAMW "this version has AdamW only"
#define NO_LORA "this version trains all weights, without adapters"
#define RECOMPUTES "gradient_checkpointing (none, selective, full) says for all layers what is computed again"
#define IN_MODEL "this belongs into the model block, in the spelling of config.json"
#define STEPS "only a number of steps is known here"

const struct conf_foreign conf_foreign[] = {
    /* parallel layouts */
    { "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers", "null", STAGES,
      "write pipeline_layers: the layers of each stage, which together are all of the model's" },
    { "expert_model_parallel_size ep expert_parallel.autoep_size", "1|null", "this version has no experts", NULL },
    { "enable_expert_parallel", "false|null", "this version has no experts", NULL },
    { "num_machines nproc_per_node", "1|null", WORLD, "remove it, or write world_size: the number of all ranks" },
    { "local_rank", "null", WORLD, "remove it" },
    { "overlap_grad_reduce overlap_param_gather overlap_comm zero_optimization.overlap_comm "
      "zero_optimization.contiguous_gradients zero_optimization.reduce_scatter zero_optimization.allgather_partitions "
      "zero_optimization.round_robin_gradients",
      "false|null", ONE_WAY, NULL },
    { "zero_optimization.stage3_gather_16bit_weights_on_model_save "
      "zero_optimization.stage3_gather_fp16_weights_on_model_save",
      "false|null", "every checkpoint holds the whole model in fp32, whatever the layout", NULL },
    { "fsdp_config", "null|false", ONE_WAY, NULL },
    { "deepspeed", "null", "a DeepSpeed configuration is not read", "write its keys into this file" },
    { "reduce_bucket_size zero_optimization.reduce_bucket_size ddp_bucket_size ddp_bucket_cap_mb "
      "zero_optimization.allgather_bucket_size zero_optimization.stage3_prefetch_bucket_size "
      "zero_optimization.stage3_param_persistence_threshold zero_optimization.stage3_max_live_parameters "
      "zero_optimization.stage3_max_reuse_distance zero_optimization.sub_group_size",
      "null", ONE_WAY, "remove it" },
    { "ddp_backend", "mpi|null", "ranks exchange data over MPI here", NULL },
    { "offload_optimizer zero_optimization.offload_optimizer zero_optimization.offload_optimizer.device offload_param "
      "zero_optimization.offload_param zero_optimization.offload_param.device optimizer_cpu_offload",
      "none|false|null", "this version computes on the CPU: there is nothing to offload to", NULL },
    { "zero_optimization.cpu_offload", "false|null", "this version computes on the CPU: there is nothing to offload to",
      NULL },
    { "zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_param.pin_memory dataloader_pin_memory",
      "false|null", "there is no device memory", NULL },
    { "comms_config.verbose comms_logger.enabled wall_clock_breakdown zero_allow_untested_optimizer "
      "zero_force_ds_cpu_optimizer",
      "false|null", "this is DeepSpeed's own", NULL },

    /* number formats */
    { "fp16 fp16.enabled fp16.auto_cast", "false|null", FP32, NULL },
    { "tf32 fp8 bf16_full_eval fp16_full_eval", "false|null", FP32, NULL },
    { "loss_scale fp16.loss_scale initial_loss_scale", "1|null", FP32 " and needs no loss scale", NULL },
    { "initial_scale_power fp16.initial_scale_power loss_scale_window fp16.loss_scale_window hysteresis "
      "fp16.hysteresis min_loss_scale fp16.min_loss_scale",
      "null", FP32 " and needs no loss scale", "remove it" },
    { "grad_accum_dtype data_types.grad_accum_dtype optimizer_state_dtype exp_avg_dtype exp_avg_sq_dtype params_dtype",
      "fp32|float32|null", FP32, NULL },
    { "bf16.bf16_optimizer_states", "false|null", "moments are fp32", NULL },
    { "accumulate_allreduce_grads_in_fp32", "true|null", "gradients are always summed exactly", NULL },

    /* optimizer and schedule */
    { "optimizer optimizer.type optim", "adamw|AdamW|adamw_torch|adamw_torch_fused|null", ADAMW,
      "remove it, or write adamw: weight decay is decoupled" },
    { "optimizer.params.torch_adam optimizer.params.adam_w_mode decoupled_weight_decay", "true|null", ADAMW, NULL },
    { "optimizer.params.bias_correction", "true|null", ADAMW ", with bias correction", NULL },
    { "optimizer.params.amsgrad", "false|null", ADAMW, NULL },
    { "optimizer.params.max_grad_norm", "", "the optimizer does not clip", "write max_grad_norm at the top level" },
    { "scheduler.type", "",
      "DeepSpeed's schedules differ from those here (WarmupLR and WarmupDecayLR warm up by a logarithm)",
      "write lr_scheduler_type: constant, linear, cosine, wsd or inverse_sqrt" },
    { "scheduler.params.warmup_type", "linear|null", "the warm-up is linear here", NULL },
    { "scheduler.params.warmup_min_lr", "0|null", "the warm-up starts from 0 here (min_lr is the end of the decay)",
      NULL },
    { "warmup_ratio", "0|null", "the key for both steps and fractions is warmup_steps",
      "write warmup_steps: a number below 1 is a fraction of max_steps" },
    { "lr_warmup_fraction", "null",
      "Megatron takes it of lr_decay_iters, warmup_steps below 1 is a fraction of max_steps", "write warmup_steps" },
    { "lr_warmup_samples lr_decay_samples lr_wsd_decay_samples", "0|null", STEPS,
      "divide by global_batch_size and write steps" },
    { "lr_wsd_decay_style lr_scheduler_kwargs.decay_type", "cosine|null", "the decay of wsd is half a cosine here",
      NULL },
    { "lr_scheduler_kwargs", "null", "its items have keys of their own", "write min_lr or wsd_decay_steps" },
    { "train_samples train_tokens", "null", STEPS, "write max_steps" },
    { "batch_size_schedule step_batch_size_schedule rampup_batch_size", "null", "the batch has one size", "remove it" },
    { "skip_steps iterations_to_skip grad_norm_skip_threshold", "null", "no step is skipped here", "remove it" },

    /* regularisation, adapters, preference training */
    { "attention_dropout", "0|null", "attention dropout is not supported", NULL },
    { "hidden_dropout dropout", "0|null", IN_MODEL, "write resid_pdrop and embd_pdrop under model (gpt2)" },
    { "lora_r lora_alpha lora_dropout lora_target_modules target_modules use_lora use_peft peft_type", "0|null|false",
      NO_LORA, NULL },
    { "label_smoothing_factor neftune_noise_alpha", "0|null", "this version trains the plain cross entropy", NULL },
    { "beta loss_type dpo_beta", "null", "this version trains the plain cross entropy", "remove it" },
    { "activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing "
      "activation_checkpointing.contiguous_memory_optimization",
      "false|null", RECOMPUTES, NULL },
    { "recompute_method recompute_num_layers recompute_modules activation_checkpointing.number_checkpoints", "null",
      RECOMPUTES, "remove it" },

    /* data */
    { "max_length max_seq_length model_max_length block_size", "null", "the key is seq_length", "write seq_length" },
    { "split", "null", "data is split when it is built", "build two token files: data_path and eval_data_path" },
    { "packing document_mask reset_attention_mask reset_position_ids padding_free assistant_only_loss "
      "completion_only_loss sft",
      "false|null", "sequences are cut from the token stream as it is", NULL },
    { "packing_strategy", "null", "sequences are cut from the token stream as it is", "remove it" },
    { "dataloader_num_workers num_workers", "0|null", "data needs no worker processes here", NULL },
    { "per_device_eval_batch_size", "null", "evaluation uses micro_batch_size", "remove it" },
    { "tokenizer_type", "null", "the tokenizer's own files say its type", "write tokenizer" },

    /* logging and saving */
    { "eval_strategy evaluation_strategy save_strategy logging_strategy", "steps|null", STEPS,
      "write eval_steps, save_steps or logging_steps; 0 is never" },
    { "load", "null", "the key is resume_from_checkpoint",
      "write resume_from_checkpoint: latest, or a checkpoint folder" },
    { "ckpt_step", "null", "the key is resume_from_checkpoint", "write the checkpoint's folder there" },
    { "save_milestone_steps save_retain_interval metric_for_best_model", "null",
      "all or the newest checkpoints are kept", "write save_total_limit" },
    { "load_best_model_at_end async_save enable_jit_checkpoint save_on_each_node push_to_hub", "false|null",
      "this version does not do that", NULL },
    { "save_only_model", "false|null", "checkpoints hold the optimizer too", NULL },
    { "save_on_signal exit_signal_handler", "true|null", "a run that is interrupted always saves", NULL },
    { "exit_duration_in_mins", "null", "this version does not do that", "remove it" },
    { "tensorboard tensorboard.enabled", "false|null", "the key is report_to", "write report_to: tensorboard" },
    { "tensorboard_dir", "null", "events are written to output_dir", "remove it" },
    { "wandb wandb.enabled csv_monitor.enabled", "false|null", "this version has tensorboard only", NULL },
    { "wandb_project wandb_exp_name", "null", "this version has tensorboard only", "remove it" },
    { "do_train full_determinism deterministic_mode", "true|null", "this is always on here", NULL },
    { "torch_compile", "false|null", "there is nothing to compile at run time", NULL },
    { "use_cpu no_cuda use_cpu_initialization", "true|null", "this version computes on the CPU", NULL },

    /* model keys of Megatron at the top level */
    { "num_layers num_hidden_layers n_layer", "", IN_MODEL,
      "write num_hidden_layers (llama) or n_layer (gpt2) under model" },
    { "hidden_size n_embd", "", IN_MODEL, "write hidden_size (llama) or n_embd (gpt2) under model" },
    { "num_attention_heads n_head", "", IN_MODEL, "write num_attention_heads (llama) or n_head (gpt2) under model" },
    { "num_key_value_heads num_query_groups group_query_attention", "", IN_MODEL,
      "write num_key_value_heads under model" },
    { "head_dim kv_channels", "", IN_MODEL, "write head_dim under model" },
    { "intermediate_size ffn_hidden_size n_inner", "", IN_MODEL,
      "write intermediate_size (llama) or n_inner (gpt2) under model" },
    { "max_position_embeddings n_positions", "", IN_MODEL, "write it under model" },
    { "rms_norm_eps norm_epsilon layer_norm_epsilon", "", IN_MODEL,
      "write rms_norm_eps (llama) or layer_norm_epsilon (gpt2) under model" },
    { "hidden_act swiglu squared_relu activation_function", "", IN_MODEL, "write it under model" },
    { "rope_theta rotary_base rope_scaling rope_type use_rope_scaling", "", IN_MODEL, "write rope_theta under model" },
    { "tie_word_embeddings untie_embeddings_and_output_weights", "", IN_MODEL,
      "write tie_word_embeddings under model" },
    { "vocab_size vocabulary_size model_type", "", IN_MODEL, "write it under model" },
    { "make_vocab_size_divisible_by pad_to_multiple_of", "null",
      "vocabularies are padded inside, with no effect on results", "remove it" },
    { "sliding_window window_size", "null", "this version attends to all earlier tokens", "remove it" },
    { "num_experts num_local_experts num_experts_per_tok moe_router_topk router_aux_loss_coef moe_aux_loss_coeff",
      "null|0", "this version has no experts", NULL },
    { "model_name_or_path", "null", "the key is model", "write model: PATH" },
};
const size_t conf_foreign_count = sizeof(conf_foreign) / sizeof(conf_foreign[0]);

const struct conf_translation conf_translations[] = {
    { "use_distributed_optimizer", "zero_optimization.stage", "true=1|false=|null=", 0,
      "true: zero_optimization.stage 1" },
    { "data_parallel_sharding_strategy", "zero_optimization.stage",
      "no_shard=0|optim=1|optim_grads=2|optim_grads_params=3|null=", 0,
      "no_shard, optim, optim_grads, optim_grads_params: zero_optimization.stage 0, 1, 2, 3" },
    { "fsdp", "zero_optimization.stage",
      "no_shard=0|shard_grad_op=2|full_shard=3|shard_grad_op auto_wrap=2|full_shard auto_wrap=3|false=|null=", 0,
      "no_shard, shard_grad_op, full_shard (also with auto_wrap): zero_optimization.stage 0, 2, 3" },
    { "tensor_parallel.autotp_size", "tp", "0=|null=", 1, "tp; 0: not given" },
    { "distributed_timeout_minutes", "distributed_timeout", "null=", 60, "distributed_timeout in minutes" },
};
const size_t conf_translation_count = sizeof(conf_translations) / sizeof(conf_translations[0]);
