/* Lets every cuda.h compile under every cydriver: cuda-bindings 13.5 names a
 * struct that a cuda.h before 13.5 does not declare. */
#pragma once
#include_next <cuda.h>
#if CUDA_VERSION < 13050
struct CUDA_FABRIC_COPY_BATCH_OP_st;
#endif
