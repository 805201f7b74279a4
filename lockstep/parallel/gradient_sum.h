// SPDX-License-Identifier: BSD-3-Clause
// Adds up the gradients that replicas have computed for the same tensors.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/parallel/replica_workers.h"

namespace lockstep {

// For each element of terms the sum of its tensors, from left to right, so that the bits do not
// depend on which replica was faster; undefined if there are none. The terms of one sum have the
// same sizes and device. Dense ones on CPU are added by the kernels of the collectives, each worker
// taking a part of the elements; sparse ones, complex ones and those on a GPU by at::add.
//
// Takes the tensors over: a sum may lie in the memory of its first term.
std::vector<at::Tensor> sum_gradients(std::vector<std::vector<at::Tensor>> terms,
                                      ReplicaWorkers& workers, int count);

}  // namespace lockstep
