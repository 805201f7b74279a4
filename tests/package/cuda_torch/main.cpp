// SPDX-License-Identifier: BSD-3-Clause
// Calls libtorch and Lockstep.
#include <iostream>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <lockstep/core/error.h>

int main() {
  const lockstep::UsageError error("linked");
  std::cout << error.what() << ' ' << at::ones({2, 3}).numel() << '\n';
  return 0;
}
