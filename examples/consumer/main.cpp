// SPDX-License-Identifier: BSD-3-Clause
// The smallest program with ranks: each rank contributes its number and receives the sum.
#include <iostream>

#include <lockstep/comm/init_process_group.h>
#include <torch/types.h>

int main() {
  auto group = lockstep::init_process_group();
  auto number = torch::full({1}, group->rank() + 1, torch::kFloat);
  group->all_reduce(number).wait();

  const int expected = group->size() * (group->size() + 1) / 2;
  if (number.item<float>() != static_cast<float>(expected)) {
    std::cerr << "rank " << group->rank() << " got " << number.item<float>() << '\n';
    return 1;
  }
  if (group->rank() == 0) std::cout << group->size() << " rank(s), sum " << expected << '\n';
  return 0;
}
