// SPDX-License-Identifier: BSD-3-Clause
// What collectives are given in the conformance suite, and what must come out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

const std::vector<at::ScalarType>& all_types();
bool can_be_scaled(at::ScalarType type);

// What ranks other than the root pass to gather and scatter.
inline const std::vector<at::Tensor> kNoTensors;

// A rank's contribution: the same on whichever rank it is made. Products of four of them fit into
// every type.
at::Tensor input_of(int rank, at::ScalarType type, at::IntArrayRef sizes, int seed = 0);
std::vector<at::Tensor> inputs_of_all(int ranks, at::ScalarType type, at::IntArrayRef sizes,
                                      int seed = 0);

// The inputs combined one after the other, half types in float, and scaled once.
at::Tensor reduced(const std::vector<at::Tensor>& inputs, const AllReduceOptions& options = {});

// A failure of the test unless the elements have the same bits.
void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected,
                      const std::string& what);

}  // namespace lockstep::testing
