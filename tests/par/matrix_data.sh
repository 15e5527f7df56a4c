# The token file of the layout matrix; read with `.`. Each line of a play is a document, so that ends of text, after
# which a token does not count, lie unevenly.
#
#   matrix_data INVAR FROM BYTES PREFIX     PREFIX.bin, PREFIX.idx from BYTES bytes of examples/tinyshakespeare.txt

matrix_text=$(cd "$(dirname "$0")/../.." && pwd)/examples/tinyshakespeare.txt

matrix_data() {
    tail -c "+$(($2 + 1))" "$matrix_text" | head -c "$3" |
        awk 'NF { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); print "{\"text\": \"" $0 "\"}" }' >"$4.jsonl"
    "$1" data build "$4.jsonl" --tokenizer bytes --output "$4" --threads 1 --quiet
}
