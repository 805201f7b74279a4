// SPDX-License-Identifier: BSD-3-Clause
// The fuzzers' corpus, without a fuzzer: files called good-* are read, the others refused.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/fuzz/fuzz_targets.h"
#include "support/locations.h"
#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep::testing {
namespace {

template <class Target>
void run_corpus(const std::string& name, const Target& target) {
  int files = 0;
  const std::filesystem::path corpus =
      std::filesystem::path(kSourceFolder) / "tests/checkpoint/fuzz/corpus" / name;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    const std::string bytes = text.str();
    const bool is_good = entry.path().filename().string().starts_with("good-");
    EXPECT_EQ(target(std::as_bytes(std::span(bytes))), is_good) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 2);
}

TEST(FuzzCorpus, OfSafetensors) {
  run_corpus("safetensors", fuzz_safetensors);
}

TEST(FuzzCorpus, OfSafetensorsIndices) {
  run_corpus("safetensors_index", fuzz_safetensors_index);
}

TEST(FuzzCorpus, OfTorchFiles) {
  run_corpus("torch_file", fuzz_torch_file);
}

TEST(FuzzCorpus, OfPickles) {
  run_corpus("pickle", fuzz_pickle);
}

}  // namespace
}  // namespace lockstep::testing
