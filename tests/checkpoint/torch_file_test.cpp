// SPDX-License-Identifier: BSD-3-Clause
// What is written to files of torch.save and read back, and the values that Python puts there.
#include "lockstep/checkpoint/torch_file.h"

#include <fstream>
#include <limits>

#include "checkpoint/tensors_of_all_types.h"
#include "checkpoint/torch_bytes.h"
#include "data/idx_bytes.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include "lockstep/checkpoint/torch_file/zip_archive.h"
#include "lockstep/checkpoint/torch_file/zip_writer.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TorchValue value_of(const std::string& bytes) {
  return read_torch_file(as_bytes(bytes), "some-file");
}

TEST(TorchFile, KeepsEveryElementType) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "all.pt";
  auto tensors = tensors_of_all_types();
  tensors.push_back({"complex128", torch::ones({2}, torch::kComplexDouble)});
  write_torch_file(file, tensors);
  EXPECT_EQ(difference(state_dict_of(read_torch_file(file)), tensors), "");
}

TEST(TorchFile, TakesAtMostTwiceTheMemoryOfTheFile) {
  constexpr std::int64_t kFile = 64 << 20;
  const TemporaryFolder folder;
  const auto file = folder.path() / "large.pt";
  run_ranks(1, [&](Rank&) {
    write_torch_file(file, std::vector<NamedTensor>{{"a", torch::ones({8 << 20})},
                                                    {"b", torch::ones({8 << 20})}});
  });
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(2 * kFile)) return rank.report("skipped");
    EXPECT_EQ(state_dict_of(read_torch_file(file)).size(), 2u);
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

TEST(TorchFile, KeepsEmptyTensorsScalarsAndViews) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "few.pt";
  const at::Tensor base = torch::arange(12).reshape({3, 4});
  const std::vector<NamedTensor> tensors{{"empty", torch::empty({2, 0, 3})},
                                         {"scalar", torch::tensor(7, torch::kLong)},
                                         {"", torch::ones({1}, torch::requires_grad())},
                                         {"transposed", base.t()},
                                         {"column", base.select(1, 2)},
                                         {"also empty", torch::empty({0})}};
  write_torch_file(file, tensors);
  EXPECT_EQ(difference(state_dict_of(read_torch_file(file)), tensors), "");
  write_torch_file(file, std::vector<NamedTensor>{});
  EXPECT_TRUE(state_dict_of(read_torch_file(file)).empty());
}

TEST(TorchFile, KeepsTiedWeightsTied) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "tied.pt";
  const at::Tensor weight = torch::randn({64, 64});
  write_torch_file(file, std::vector<NamedTensor>{{"in", weight}, {"out", weight}});
  EXPECT_LT(std::filesystem::file_size(file), 20'000u);
  const auto read = state_dict_of(read_torch_file(file));
  EXPECT_EQ(read.at(0).tensor.data_ptr(), read.at(1).tensor.data_ptr());
  EXPECT_TRUE(read.at(1).tensor.equal(weight));
}

TEST(TorchFile, AlignsStoragesTo64Bytes) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.pt";
  write_torch_file(file, tensors_of_all_types());
  const ZipArchive archive(bytes_in_file(file), "net.pt");
  for (const auto& entry : archive.entries()) EXPECT_EQ(entry.data % 64, 0u) << entry.name;
}

TEST(TorchFile, RefusesWhatAFileCannotHold) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.pt";
  const at::Tensor one = torch::ones({1});
  const std::vector<std::pair<std::vector<NamedTensor>, std::string>> wrong{
      {{{"a", one}, {"a", one}}, "two tensors have the name \"a\""},
      {{{"\xff", one}}, "is not UTF-8"},
      {{{std::string(4097, 'n'), one}}, "cannot have the name"},
      {{{"a", at::Tensor()}}, "\"a\" is undefined"},
      {{{"a", torch::eye(2).to_sparse()}}, "is sparse"}};
  for (const auto& [tensors, message] : wrong) {
    EXPECT_THAT([&] { write_torch_file(file, tensors); },
                ThrowsMessage<UsageError>(HasSubstr(message)));
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(TorchFile, ReadsPlainValues) {
  const std::string floats("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40", 12);  // 1, 2, 3
  const std::string half = "G\x3f\xe0" + std::string(6, '\0');
  const std::string tensor =
      pickled_tensor(pickled_storage("torch\nFloatStorage", "0", 3), 1, {2}, {1});
  const TorchValue value = value_of(torch_bytes(
      "}(" + pickled("list") + "](" + pickled(-3) + half + std::string("\x8a\x05\0\0\0\0\x01", 7) +
          "\x8a" + std::string(1, '\0') + "e" + pickled("tuple") + "\x88\x89\x86" +
          pickled("none") + "N" + pickled(7) + pickled("text") + pickled("net") +
          "ctorch._utils\n_rebuild_parameter\n" + tensor + "\x88" + kNoHooks + "\x87R" + "u",
      floats));
  const auto& list = std::get<TorchValue::List>(value.find("list")->data);
  EXPECT_EQ(std::get<std::int64_t>(list.at(0).data), -3);
  EXPECT_EQ(std::get<double>(list.at(1).data), 0.5);
  EXPECT_EQ(std::get<std::int64_t>(list.at(2).data), std::int64_t{1} << 32);
  EXPECT_EQ(std::get<std::int64_t>(list.at(3).data), 0);
  const auto& tuple = std::get<TorchValue::Tuple>(value.find("tuple")->data).items;
  EXPECT_TRUE(std::get<bool>(tuple.at(0).data));
  EXPECT_FALSE(std::get<bool>(tuple.at(1).data));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(value.find("none")->data));
  EXPECT_EQ(value.find("absent"), nullptr);
  EXPECT_EQ(list.at(0).find("x"), nullptr);
  const auto& dict = std::get<TorchValue::Dict>(value.data);
  EXPECT_EQ(std::get<std::int64_t>(dict.at(3).first.data), 7);
  EXPECT_EQ(std::get<std::string>(dict.at(3).second.data), "text");
  EXPECT_TRUE(std::get<at::Tensor>(value.find("net")->data).equal(torch::tensor({2.0F, 3.0F})));
}

TEST(TorchFile, WritesPlainValuesThatAreReadBack) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "values.pt";
  const at::Tensor tensor = torch::arange(6).reshape({2, 3});
  const auto text = [](const char* value) { return TorchValue{std::string(value)}; };
  const std::vector<std::int64_t> numbers{0,
                                          -1,
                                          255,
                                          1 << 30,
                                          std::int64_t{1} << 31,
                                          std::numeric_limits<std::int64_t>::min(),
                                          std::numeric_limits<std::int64_t>::max()};
  TorchValue::List list;
  for (const std::int64_t number : numbers) list.push_back({number});
  write_torch_file(
      file, TorchValue{TorchValue::Dict{
                {text("numbers"), {list}},
                {{std::int64_t{-3}}, {TorchValue::Tuple{{{true}, {}, {false}, {-0.5}, text("")}}}},
                {text("tensors"), dict_of(std::vector<NamedTensor>{{"a", tensor}, {"b", tensor}})},
                {text("empty"), {TorchValue::Dict{}}}}});
  const TorchValue read = read_torch_file(file);
  const auto& read_list = std::get<TorchValue::List>(read.find("numbers")->data);
  ASSERT_EQ(read_list.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(std::get<std::int64_t>(read_list[i].data), numbers[i]);
  }
  const auto& [key, value] = std::get<TorchValue::Dict>(read.data)[1];
  EXPECT_EQ(std::get<std::int64_t>(key.data), -3);
  const auto& tuple = std::get<TorchValue::Tuple>(value.data).items;
  ASSERT_EQ(tuple.size(), 5u);
  EXPECT_TRUE(std::get<bool>(tuple[0].data));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(tuple[1].data));
  EXPECT_FALSE(std::get<bool>(tuple[2].data));
  EXPECT_EQ(std::get<double>(tuple[3].data), -0.5);
  EXPECT_EQ(std::get<std::string>(tuple[4].data), "");
  const auto tensors = state_dict_of(read, "tensors");
  EXPECT_TRUE(tensors.at(0).tensor.equal(tensor));
  EXPECT_EQ(tensors.at(0).tensor.data_ptr(), tensors.at(1).tensor.data_ptr());
  EXPECT_TRUE(std::get<TorchValue::Dict>(read.find("empty")->data).empty());
}

TEST(TorchFile, RefusesValuesThatItWouldNotRead) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "values.pt";
  const TorchValue key{std::string("key")};
  TorchValue deep;
  for (int i = 0; i < 101; ++i) deep = {TorchValue::List{std::move(deep)}};
  const std::vector<std::pair<TorchValue, std::string>> wrong{
      {{TorchValue::Dict{{key, {}}, {key, {}}}}, "has the key \"key\" twice"},
      {{TorchValue::Dict{{{0.5}, {}}}}, "neither a string nor an integer"},
      {{std::string("\xff")}, "is not UTF-8"},
      {{TorchValue::Dict{{key, {TorchValue::List{{}, {at::Tensor()}}}}}}, "\"key.1\" is undefined"},
      {deep, "more than 100 deep"}};
  for (const auto& [value, message] : wrong) {
    EXPECT_THAT([&] { write_torch_file(file, value); },
                ThrowsMessage<UsageError>(HasSubstr(message)));
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(TorchFile, FindsTheStateDictByItsName) {
  const std::string tensor =
      pickled_tensor(pickled_storage("torch\nByteStorage", "0", 2), 0, {2}, {1});
  const TorchValue value =
      value_of(torch_bytes("}(" + pickled("model") + "}" + pickled("w") + tensor + "s" +
                               pickled("epoch") + pickled(3) + pickled("state") + "}" + pickled(0) +
                               "](" + tensor + "e" + "s" + pickled("ema") + "}" + "u",
                           "\x01\x02"));
  EXPECT_EQ(state_dict_of(value, "model").at(0).name, "w");
  EXPECT_TRUE(state_dict_of(value, "ema").empty());
  EXPECT_THAT([&] { state_dict_of(value); },
              ThrowsMessage<CheckpointError>(HasSubstr(
                  "not a dict of names and tensors; these parts are: \"model\", \"ema\"")));
  EXPECT_THAT([&] { state_dict_of(value, "epoch"); },
              ThrowsMessage<CheckpointError>(HasSubstr("the part \"epoch\" is not a dict")));
  EXPECT_THAT([&] { state_dict_of(value_of(torch_bytes("N"))); },
              ThrowsMessage<CheckpointError>(HasSubstr("no part of it is one")));
  const auto all = all_tensors(value);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "model.w");
  EXPECT_EQ(all[1].name, "state.0.0");
}

TEST(TorchFile, NamesWhatKeepsADictFromBeingAStateDict) {
  const auto named = [](const char* name, TorchValue value) {
    return std::pair(TorchValue{std::string(name)}, std::move(value));
  };
  const TorchValue tensor{torch::ones({2})};
  const TorchValue plain{TorchValue::Dict{named("weight", tensor)}};
  const TorchValue extra{TorchValue::Dict{named("weight", tensor), named("bn._extra_state", {})}};
  const auto expect_refused = [](const TorchValue& value, const char* part, const char* message) {
    EXPECT_THAT([&] { state_dict_of(value, part); },
                ThrowsMessage<CheckpointError>(HasSubstr(message)));
  };
  expect_refused(extra, "",
                 "its entry \"bn._extra_state\" is None; take the tensors alone with all_tensors");
  EXPECT_EQ(all_tensors(extra).size(), 1u);
  expect_refused(TorchValue{TorchValue::Dict{named("model", extra)}}, "",
                 "no part of it is one: of \"model\", its entry \"bn._extra_state\" is None");
  expect_refused(TorchValue{TorchValue::Dict{named("model", extra)}}, "model",
                 "the part \"model\" is not a dict of names and tensors: its entry "
                 "\"bn._extra_state\" is None");
  expect_refused(TorchValue{TorchValue::Dict{
                     named("w", tensor), {{std::int64_t{3}}, tensor}, named("epoch", {3.5})}},
                 "", "it has the key 3, which is no name (and there are 1 more)");
  expect_refused(plain, "model",
                 "there is no part \"model\", since the saved value is itself a dict of names");
}

// Named, so that nobody converts them twice: README's own file, and what torch::save writes of
// tensors.
TEST(TorchFile, NamesTheArchivesOfTorchSaveInCpp) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "net.pt";
  const torch::nn::Linear net(3, 2);
  torch::save(net, file);
  EXPECT_THAT([&] { read_torch_file(file); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("it is a TorchScript archive"),
                                                   HasSubstr("load it with torch::load"))));
  torch::save(torch::ones({2}), file);
  EXPECT_THAT([&] { read_torch_file(file); },
              ThrowsMessage<CheckpointError>(HasSubstr("it is a TorchScript archive")));
}

TEST(TorchFile, TwoWaysToOneNameAreAnError) {
  const std::string tensor =
      pickled_tensor(pickled_storage("torch\nByteStorage", "0", 1), 0, {}, {});
  const TorchValue value = value_of(torch_bytes(
      "}(" + pickled("a.b") + tensor + pickled("a") + "}" + pickled("b") + tensor + "s" + "u",
      "\x01"));
  EXPECT_THAT([&] { all_tensors(value); },
              ThrowsMessage<CheckpointError>(HasSubstr("two tensors have the name \"a.b\"")));
}

TEST(TorchFile, NamesOfTensorsHaveABoundedLength) {
  std::string value = pickled_tensor(pickled_storage("torch\nByteStorage", "0", 1), 0, {}, {});
  for (int i = 0; i < 5; ++i) {
    std::string dict("}");
    dict.append(pickled(std::string(1000, 'k'))).append(value).append("s");
    value = std::move(dict);
  }
  const TorchValue nested = value_of(torch_bytes(value, "\x01"));
  EXPECT_THAT([&] { all_tensors(nested); },
              ThrowsMessage<CheckpointError>(HasSubstr("a name longer than 4096 bytes")));
}

// As in archives of more than 4 GiB, which no test writes.
TEST(ZipWriter, WritesWideFieldsThatAreReadBack) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "wide.zip";
  WholeFile out(file);
  ZipWriter writer(out, /*wide_from=*/0);
  const std::string first = "some data";
  writer.add("a/first", as_bytes(first));
  writer.add("a/second", {});
  writer.finish();
  out.commit();
  const ZipArchive archive(bytes_in_file(file), "wide.zip");
  EXPECT_EQ(archive.read_text(*archive.find("a/first")), first);
  EXPECT_EQ(archive.read_text(*archive.find("a/second")), "");
  EXPECT_EQ(archive.find("a/third"), nullptr);
}

TEST(TorchFile, NamesTheFileThatItCannotRead) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { read_torch_file(folder.path() / "absent"); },
              ThrowsMessage<UsageError>(HasSubstr("absent: there is no such file")));
}

}  // namespace
}  // namespace lockstep::testing
