// SPDX-License-Identifier: BSD-3-Clause
// Sharded safetensors files, read by their index, and indices that lie.
#include <filesystem>

#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/tensors_of_all_types.h"
#include "data/idx_bytes.h"
#include "support/temporary_folder.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors/safetensors_index.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

class ShardedSafetensors : public ::testing::Test {
 protected:
  ShardedSafetensors() {
    write_safetensors(path(kFirst), first_, {{"format", "pt"}, {"part", "1"}});
    write_safetensors(path(kSecond), second_, {{"format", "pt"}, {"part", "2"}});
    write_index(kGoodMap);
  }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  void write_index(const std::string& map) const {
    folder_.write(kIndex, R"({"metadata": {"total_size": 36}, "weight_map": {)" + map + "}}");
  }
  void expect_refused(const std::string& message) const {
    EXPECT_THAT(
        [&] { read_safetensors(path(kIndex)); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr(path(kIndex).string()), HasSubstr(message))))
        << message;
  }

  inline static const std::string kGoodMap =
      fmt::format(R"("b": "{0}", "c": "{1}", "a": "{0}")", kFirst, kSecond);
  TemporaryFolder folder_;
  std::vector<NamedTensor> first_{{"b", torch::randn({2, 3})}, {"a", torch::arange(3)}};
  std::vector<NamedTensor> second_{{"c", torch::ones({2}, torch::kHalf)}};
};

TEST_F(ShardedSafetensors, AreReadByTheirIndex) {
  const Safetensors read = read_safetensors(path(kIndex));
  std::vector<NamedTensor> all = first_;
  all.insert(all.end(), second_.begin(), second_.end());
  EXPECT_EQ(difference(read.tensors, all), "");
  EXPECT_EQ(read.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"part", "1"}}));
  const SafetensorsFile opened(path(kIndex));
  EXPECT_EQ(opened.entries().at(1).part, kFirst);
  EXPECT_EQ(opened.entries().at(2).part, kSecond);
  EXPECT_TRUE(same_tensor(opened.read(2), second_[0].tensor));
  EXPECT_EQ(SafetensorsFile(path(kFirst)).entries().at(0).part, "");
}

TEST_F(ShardedSafetensors, MayHaveAnIndexWithAByteOrderMark) {
  folder_.write(kIndex, "\xEF\xBB\xBF{\"weight_map\": {" + kGoodMap + "}}");
  EXPECT_EQ(read_safetensors(path(kIndex)).tensors.size(), 3u);
}

TEST_F(ShardedSafetensors, MayBeLinks) {
  std::filesystem::create_directory(path("blobs"));
  std::filesystem::rename(path(kFirst), path("blobs/1"));
  std::filesystem::create_symlink("blobs/1", path(kFirst));
  EXPECT_EQ(read_safetensors(path(kIndex)).tensors.size(), 3u);
}

TEST_F(ShardedSafetensors, MustAllBeThere) {
  std::filesystem::remove(path(kSecond));
  expect_refused(
      fmt::format("of the 2 files that it names, 1 is missing: \"{}\"; put it", kSecond));
  std::filesystem::remove(path(kFirst));
  expect_refused(
      fmt::format("2 are missing: \"{}\", \"{}\"; put them into its folder", kFirst, kSecond));
}

TEST_F(ShardedSafetensors, HaveTheTensorsThatTheIndexExpectsInThem) {
  const std::string first(kFirst);
  const std::string second(kSecond);
  write_index(fmt::format(R"("b": "{0}", "c": "{0}", "a": "{0}", "d": "{1}")", first, second));
  expect_refused(
      fmt::format("\"{}\" has entry \"c\", which the index expects in \"{}\"", second, first));
  write_index(fmt::format(R"("b": "{0}", "a": "{0}", "d": "{1}")", first, second));
  expect_refused(fmt::format("\"{}\" has entry \"c\", which the index does not name", second));
  write_index(kGoodMap + fmt::format(R"(, "d": "{}", "e": "{}")", second, first));
  expect_refused(
      fmt::format("entry \"d\" is not in \"{}\", where the index expects it, nor are 1 "
                  "others in theirs",
                  second));
  // Two names of one file give each tensor two places.
  std::filesystem::create_symlink(kFirst, path("again"));
  write_index(kGoodMap + R"(, "z": "again")");
  expect_refused("\"again\" has entry \"b\", which the index expects in");
}

TEST_F(ShardedSafetensors, AreSafetensorsFiles) {
  folder_.write(kSecond, "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT([&] { read_safetensors(path(kIndex)); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr(kSecond), HasSubstr("git lfs pull"))));
  std::filesystem::copy_file(path(kIndex), path("copy"));
  write_index(R"("a": "copy")");
  EXPECT_THAT([&] { read_safetensors(path(kIndex)); },
              ThrowsMessage<CheckpointError>(
                  AllOf(HasSubstr("copy: "), HasSubstr("it is an index of sharded files"))));
}

TEST_F(ShardedSafetensors, AreInTheFolderOfTheIndex) {
  write_safetensors(path("secret"), second_);
  std::filesystem::create_directory(path("model"));
  for (const std::string& name :
       std::vector<std::string>{"../secret", path("secret").string(), "..", ".", "",
                                "a/../../secret", "sub/part", "x\\u0000y"}) {
    folder_.write(std::string("model/") + kIndex, R"({"weight_map": {"c": ")" + name + "\"}}");
    EXPECT_THAT(
        [&] { read_safetensors(path("model") / kIndex); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr("entry \"c\": its file "),
                                             HasSubstr("is not a name in the index's folder"))))
        << name;
  }
}

std::size_t parse_index(const std::string& text) {
  return read_safetensors_index(bytes_in_memory(as_bytes(text)), "some-index").size();
}

const std::string kGoodText =
    R"({"metadata":{"total_size":3,"more":[1.5,{"x":null}]},"weight_map":{"a":"p1","b":"p2"}})";

TEST(SafetensorsIndex, IsRefusedByTheRuleThatItBreaks) {
  const std::vector<std::pair<std::string, std::string>> files{
      {"{}", "without a weight_map, so it is no index of sharded files"},
      {R"({"metadata": {"weight_map": {"a": "b"}}})", "without a weight_map"},
      {"[]", "without a weight_map"},
      {R"({"weight_map": 3})", "its weight_map is a number, not an object"},
      {R"({"weight_map": "part"})", "its weight_map is a string, not an object"},
      {R"({"weight_map": ["part"]})", "its weight_map is an array, not an object"},
      {R"({"weight_map": null})", "its weight_map is null, not an object"},
      {R"({"weight_map": {"a": 1}})", "entry \"a\": its file is a number, not a name"},
      {R"({"weight_map": {"a": null}})", "entry \"a\": its file is null, not a name"},
      {R"({"weight_map": {"a": ["b"]}})", "entry \"a\": its file is an array, not a name"},
      {R"({"weight_map": {"a": {"a": "b"}}})", "entry \"a\": its file is an object, not a name"},
      {R"({"weight_map": {"a": "b", "a": "b"}})", "the name \"a\" is there twice"},
      {R"({"weight_map": {}, "weight_map": {}})", "it has weight_map twice"},
      {R"({"weight_map": {"a": "b"}} x)", "it is not valid JSON at byte 28"},
      {R"({"weight_map": {"a": "b"})", "it is not valid JSON"},
      {std::string("{\"weight_map\": {}}\0 {}", 22), "it is not valid JSON at byte 19, which is"},
      {"{\"x\":" + std::string(200, '[') + std::string(200, ']') + "}",
       "nested more than 100 deep"},
      {R"({"weight_map": {")" + std::string(4097, 'n') + R"(": "b"}})",
       "(4097 bytes) is longer than 4096 bytes"}};
  for (const auto& [text, message] : files) {
    EXPECT_THAT([&] { parse_index(text); }, ThrowsMessage<CheckpointError>(AllOf(
                                                HasSubstr("some-index: "), HasSubstr(message))))
        << message;
  }
  std::string many = R"({"weight_map": {)";
  for (int i = 0; i <= 4'096; ++i) many += fmt::format(R"({}"{}": "{}")", i == 0 ? "" : ",", i, i);
  EXPECT_THAT([&] { parse_index(many + "}}"); },
              ThrowsMessage<CheckpointError>(HasSubstr("it names more than 4096 files")));
}

TEST(SafetensorsIndex, EveryTruncationIsRefused) {
  EXPECT_EQ(parse_index(kGoodText), 2u);
  for (std::size_t size = 0; size < kGoodText.size(); ++size) {
    EXPECT_THROW(parse_index(kGoodText.substr(0, size)), CheckpointError) << size;
  }
}

TEST(SafetensorsIndex, AFlippedBitIsRefusedOrStillWellFormed) {
  for (std::size_t i = 0; i < kGoodText.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = kGoodText;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      try {
        EXPECT_LE(parse_index(flipped), 2u) << "byte " << i << " bit " << bit;
      } catch (const CheckpointError&) {
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
