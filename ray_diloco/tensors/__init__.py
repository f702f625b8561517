"""States of a model as tensors and files.

dtypes                which dtypes exist, and what each is computed in
schema                names, shapes, dtypes, ties and statistics of a state; its fingerprint
snapshot              kept buffers and one-memcpy copies of a state
pseudo_gradient       float32(baseline) - float32(current), in pieces
codec                 how a pseudo-gradient is written: a table by name
codec_seam            what a codec is: a layout and two functions over pieces
codec_cast            fp32, bf16, fp16
codec_block           int8, int4, fp4_e3m0 with a scale for each block
codec_topk            the largest numbers of each block
delta_file            a node delta on disk: written from two states, read in pieces
baseline              what moves baseline and live model: advance, rebase, replace, fold back
safetensors_header    the header of a safetensors file: parsed with limits, planned
safetensors_reader    single tensors of a file, read in pieces
safetensors_writer    a file written as a stream, with its hashes
"""
