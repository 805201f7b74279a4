// SPDX-License-Identifier: BSD-3-Clause
// Errors for the tests of parallel/ to make and to catch.
#pragma once

#include <stdexcept>
#include <string>

#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::testing {

// The message of the Error that the function throws; empty if it throws none.
template <class Error, class Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list&) {
    throw std::out_of_range("the user's own mistake");
  }
};

}  // namespace lockstep::testing
