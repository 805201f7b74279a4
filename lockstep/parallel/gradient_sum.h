// SPDX-License-Identifier: BSD-3-Clause
// Adds up the gradients that replicas have computed for the same tensors.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/parallel/replica_workers.h"

namespace lockstep {

// Returns for each element of `terms` the sum of its tensors, added from left to right, so that the
// bits do not depend on the replicas' timing; undefined if it has none. The terms of one sum have
// the same sizes and device. Dense terms on CPU are added by the collectives' kernels, a part of
// the elements per worker; sparse and lazy terms (is_lazy) and terms on a GPU by at::add.
//
// Consumes the tensors: a sum may reuse the memory of its first term.
std::vector<at::Tensor> sum_gradients(std::vector<std::vector<at::Tensor>> terms,
                                      ReplicaWorkers& workers, int count);

}  // namespace lockstep
