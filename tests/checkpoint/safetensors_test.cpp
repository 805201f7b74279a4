// SPDX-License-Identifier: BSD-3-Clause
// What is written to safetensors files and read back.
#include "lockstep/checkpoint/safetensors.h"

#include <fstream>
#include <sstream>

#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/tensors_of_all_types.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string content_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

TEST(Safetensors, KeepsEveryElementType) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "all.safetensors";
  const auto tensors = tensors_of_all_types();
  write_safetensors(file, tensors);
  EXPECT_EQ(difference(read_safetensors(file).tensors, tensors), "");
}

TEST(Safetensors, KeepsEmptyTensorsScalarsAndMetadata) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "few.safetensors";
  const std::vector<NamedTensor> tensors{{"empty", torch::empty({2, 0, 3})},
                                         {"scalar", torch::tensor(7, torch::kLong)},
                                         {"", torch::ones({1})},
                                         {"another empty", torch::empty({0}, torch::kByte)}};
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"Grüße \"\n", "\x01"}};
  write_safetensors(file, tensors, metadata);
  const Safetensors read = read_safetensors(file);
  EXPECT_EQ(difference(read.tensors, tensors), "");
  EXPECT_EQ(read.metadata, metadata);
}

TEST(Safetensors, WritesAFileWithoutTensors) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "none.safetensors";
  write_safetensors(file, {});
  EXPECT_EQ(content_of(file), safetensors_bytes("{}      ", ""));
  EXPECT_TRUE(read_safetensors(file).tensors.empty());
}

// Names keep their order; data lies in order of width, aligned for whoever maps the file.
TEST(Safetensors, AlignsWhatItWrites) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.safetensors";
  write_safetensors(file, std::vector<NamedTensor>{{"b", torch::ones({3}, torch::kByte)},
                                                   {"d", torch::ones({2}, torch::kDouble)},
                                                   {"f", torch::ones({1})}});
  const SafetensorsFile opened(file);
  std::vector<std::string> found;
  for (const auto& entry : opened.entries()) {
    found.push_back(entry.name + " " + entry.dtype + " " + std::to_string(entry.begin));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"b U8 20", "d F64 0", "f F32 16"}));
  EXPECT_EQ((content_of(file).size() - 23) % 8, 0u);
}

TEST(Safetensors, WritesElementsInIndexOrder) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "views.safetensors";
  const at::Tensor base = torch::arange(12).reshape({3, 4});
  const std::vector<NamedTensor> tensors{
      {"transposed", base.t()},
      {"column", base.select(1, 2)},
      {"expanded", torch::ones({1}).expand({5})},
      {"conjugated", torch::view_as_complex(torch::ones({2, 2})).conj()},
      {"parameter", torch::ones({2}, torch::requires_grad())}};
  write_safetensors(file, tensors);
  const auto read = read_safetensors(file).tensors;
  EXPECT_TRUE(read[0].tensor.equal(base.t()));
  EXPECT_TRUE(read[1].tensor.equal(base.select(1, 2)));
  EXPECT_TRUE(read[2].tensor.equal(torch::ones({5})));
  EXPECT_TRUE(read[3].tensor.equal(tensors[3].tensor.resolve_conj()));
  EXPECT_FALSE(read[4].tensor.requires_grad());
  for (const auto& [name, tensor] : read) EXPECT_TRUE(tensor.is_contiguous()) << name;
}

TEST(Safetensors, ATypeThatNobodyKnowsLeavesTheOthersReadable) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "mixed.safetensors";
  folder.write("mixed.safetensors",
               safetensors_bytes(R"({"w":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},)"
                                 R"("p":{"dtype":"F4","shape":[2,2],"data_offsets":[4,6]},)"
                                 R"("q":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[6,9]}})",
                                 "abcdefghi"));
  const SafetensorsFile opened(file);
  EXPECT_TRUE(opened.can_read(0));
  EXPECT_FALSE(opened.can_read(1));
  EXPECT_TRUE(opened.read(0).equal(torch::tensor({{97, 98}, {99, 100}}, torch::kByte)));
  EXPECT_TRUE(opened.read_bytes(2).equal(torch::tensor({103, 104, 105}, torch::kByte)));
  EXPECT_THAT([&] { opened.read(1); },
              ThrowsMessage<CheckpointError>(
                  HasSubstr("mixed.safetensors: entry \"p\" has elements of type \"F4\" (Lockstep "
                            "does not know it); convert the file, or take its bytes")));
  EXPECT_THAT(
      [&] { read_safetensors(file); },
      ThrowsMessage<CheckpointError>(AllOf(
          HasSubstr("2 of 3 entries cannot be read: \"p\" of type \"F4\" (Lockstep does not know "
                    "it), \"q\" of type \"F6_E2M3\""),
          HasSubstr("read the others one by one with SafetensorsFile"))));
}

// Scales of 8 bits, which only a later libtorch has.
TEST(Safetensors, ATypeOfALaterLibtorchLeavesTheOthersReadable) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "scaled.safetensors";
  folder.write("scaled.safetensors",
               safetensors_bytes(R"({"w":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                                 R"("s":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[4,6]}})",
                                 "abcd\x7f\x80"));
  const SafetensorsFile opened(file);
  EXPECT_EQ(opened.read(0).numel(), 4);
  if (opened.can_read(1)) {
    EXPECT_TRUE(opened.read(1).to(torch::kFloat).equal(torch::tensor({1.0F, 2.0F})));
    EXPECT_EQ(read_safetensors(file).tensors.size(), 2u);
    return;
  }
  EXPECT_THAT(
      [&] { read_safetensors(file); },
      ThrowsMessage<CheckpointError>(HasSubstr(
          "\"s\" of type \"F8_E8M0\" (this libtorch lacks it; build Lockstep with a later")));
}

TEST(Safetensors, TakesNullForNoMetadata) {
  const TemporaryFolder folder;
  folder.write("null", safetensors_bytes(R"({"__metadata__":null,"a":{"dtype":"U8","shape":[1],)"
                                         R"("data_offsets":[0,1]}})",
                                         "x"));
  const Safetensors read = read_safetensors(folder.path() / "null");
  EXPECT_EQ(read.tensors.size(), 1u);
  EXPECT_TRUE(read.metadata.empty());
}

TEST(Safetensors, WritesTiedWeightsUnderEachName) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "tied.safetensors";
  const at::Tensor weight = torch::randn({4, 3});
  write_safetensors(file, std::vector<NamedTensor>{{"in", weight}, {"out", weight}});
  const auto read = read_safetensors(file).tensors;
  EXPECT_TRUE(read.at(0).tensor.equal(weight));
  EXPECT_TRUE(read.at(1).tensor.equal(weight));
}

TEST(Safetensors, RefusesWhatAFileCannotHold) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.safetensors";
  folder.write("net.safetensors", "an older file");
  const at::Tensor one = torch::ones({1});
  const std::vector<std::pair<std::vector<NamedTensor>, std::string>> wrong{
      {{{"a", one}, {"a", one}}, "two tensors have the name \"a\""},
      {{{"__metadata__", one}}, "cannot have the name \"__metadata__\""},
      {{{std::string(4097, 'n'), one}}, "(4097 bytes)"},
      {{{"\xff", one}}, "is not UTF-8"},
      {{{"a", at::Tensor()}}, "\"a\" is undefined"},
      {{{"a", torch::ones({1}, torch::kComplexDouble)}},
       "complex128, which safetensors lacks; save torch::view_as_real(tensor)"},
      {{{"a", torch::empty({1}, torch::kMeta)}}, "on the device meta"},
      {{{"a", torch::eye(2).to_sparse()}}, "to_dense()"},
      {{{"a", torch::quantize_per_tensor(one, 1, 0, torch::kQInt8)}}, "dequantize()"},
      {{{"a", torch::empty({1}, torch::kComplexHalf)}}, "save tensor.view(torch::kByte)"}};
  for (const auto& [tensors, message] : wrong) {
    EXPECT_THAT([&] { write_safetensors(file, tensors); },
                ThrowsMessage<UsageError>(HasSubstr(message)));
  }
  EXPECT_THAT(
      [&] {
        write_safetensors(file, {}, {{"key", "\xff"}});
      },
      ThrowsMessage<UsageError>(HasSubstr("is not UTF-8")));
  EXPECT_EQ(content_of(file), "an older file");
  EXPECT_THAT([&] { write_safetensors(folder.path() / "absent" / "net", {}); },
              ThrowsMessage<UsageError>(HasSubstr("absent/net")));
}

TEST(Safetensors, AFullDiskKeepsTheOldFile) {
  const TemporaryFolder folder;
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!mount_disk(folder.path(), 1 << 20)) return rank.report("skipped");
    const auto file = folder.path() / "net";
    write_safetensors(file, std::vector<NamedTensor>{{"a", torch::ones({5})}});
    EXPECT_THAT(
        [&] {
          write_safetensors(file, std::vector<NamedTensor>{{"a", torch::ones({1 << 19})}});
        },
        ThrowsMessage<BackendError>(AllOf(HasSubstr("No space left"), HasSubstr("2.0 MiB"))));
    EXPECT_TRUE(read_safetensors(file).tensors.at(0).tensor.equal(torch::ones({5})));
  });
  if (outcomes[0].result == "skipped") skip_or_fail("a mount needs a namespace of its own");
}

TEST(Safetensors, TakesNoSecondCopyOfTheTensors) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "large";
  const std::vector<NamedTensor> tensors{{"a", torch::ones({8 << 20})},  // 32 MiB
                                         {"b", torch::ones({8 << 20})}};
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(24 << 20)) return rank.report("skipped");
    write_safetensors(file, tensors);
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
  run_ranks(1, [&](Rank&) {
    limit_memory(96 << 20);
    EXPECT_EQ(read_safetensors(file).tensors.size(), 2u);
  });
}

TEST(Safetensors, ReadsATensorAtATime) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "two";
  write_safetensors(file,
                    std::vector<NamedTensor>{{"a", torch::ones({2})}, {"b", torch::zeros({3})}});
  const SafetensorsFile opened(file);
  EXPECT_TRUE(opened.read(1).equal(torch::zeros({3})));
  EXPECT_TRUE(opened.read(0).equal(torch::ones({2})));
  EXPECT_THAT([&] { opened.read(2); },
              ThrowsMessage<UsageError>(HasSubstr("two: there is no entry 2; it has 2")));
}

TEST(Safetensors, NamesTheFileThatItCannotRead) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { read_safetensors(folder.path() / "absent"); },
              ThrowsMessage<UsageError>(HasSubstr("absent: there is no such file")));
}

}  // namespace
}  // namespace lockstep::testing
