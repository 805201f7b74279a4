// SPDX-License-Identifier: BSD-3-Clause
// The fuzzers' corpus with random changes, for the runs of the tests with a sanitizer.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "checkpoint/fuzz/fuzz_targets.h"
#include "support/locations.h"
#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::testing {
namespace {

// Changes bytes, cuts, and repeats pieces.
std::string mutated(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (auto changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(bytes.size());
    switch (below(4)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, below(8));
        break;
      default:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(16)));
    }
  }
  return bytes;
}

// An input is refused or well-formed; anything else ends the test, or the process.
template <class Target>
void run_mutations(const std::string& name, const Target& target) {
  std::vector<std::string> seeds;
  const std::filesystem::path corpus =
      std::filesystem::path(kSourceFolder) / "tests/checkpoint/fuzz/corpus" / name;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    seeds.push_back(text.str());
  }
  std::ranges::sort(seeds);
  std::mt19937 random(20261126);
  int refused = 0;
  constexpr int kRounds = 10'000;
  for (int round = 0; round < kRounds; ++round) {
    const std::string bytes = mutated(seeds[random() % seeds.size()], random);
    if (!target(std::as_bytes(std::span(bytes)))) ++refused;
  }
  EXPECT_GT(refused, kRounds / 2);
  EXPECT_LT(refused, kRounds);
}

TEST(Mutations, OfSafetensors) {
  run_mutations("safetensors", fuzz_safetensors);
}

TEST(Mutations, OfSafetensorsIndices) {
  run_mutations("safetensors_index", fuzz_safetensors_index);
}

TEST(Mutations, OfTorchFiles) {
  run_mutations("torch_file", fuzz_torch_file);
}

TEST(Mutations, OfPickles) {
  run_mutations("pickle", fuzz_pickle);
}

}  // namespace
}  // namespace lockstep::testing
