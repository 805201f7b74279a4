// SPDX-License-Identifier: BSD-3-Clause
// Text: which files it consists of, how it is cut, and what is refused.
#include "tools/recipes/recipe_data.h"

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Each byte differs from its neighbours.
std::string text_of(std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i * 7 % 256);
  return text;
}

// The least that is taken.
constexpr std::size_t kTenWindows = 10 * kTextWindow + 1;

TrainingData load(const std::filesystem::path& path) {
  InitOptions options;
  options.device = at::Device(at::kCPU);
  return load_text(path, *init_process_group(options));
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return {reinterpret_cast<const char*>(whole.data_ptr<std::uint8_t>()),
          static_cast<std::size_t>(whole.numel())};
}

// Both functions must refuse the path, with a message that holds all these parts.
template <class... Parts>
void expect_refused(const std::filesystem::path& path, Parts... parts) {
  EXPECT_THAT([&] { require_text(path); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path.string()), HasSubstr(parts)...)));
  EXPECT_THAT([&] { load(path); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path.string()), HasSubstr(parts)...)));
}

TEST(TextData, ConsistsOfWindowsAndTheSameOneByteLater) {
  const testing::TemporaryFolder folder;
  // 21 windows, and 5 bytes that fill none.
  const std::string text = text_of(21 * kTextWindow + 1 + 5);
  folder.write("text", text);
  const TrainingData data = load(folder.path() / "text");
  EXPECT_EQ(data.inputs.sizes(), at::IntArrayRef({19, kTextWindow}));
  EXPECT_EQ(data.test_inputs.sizes(), at::IntArrayRef({2, kTextWindow}));
  EXPECT_EQ(bytes_of(data.inputs), text.substr(0, 19 * kTextWindow));
  EXPECT_EQ(bytes_of(data.targets), text.substr(1, 19 * kTextWindow));
  EXPECT_EQ(bytes_of(data.test_inputs), text.substr(19 * kTextWindow, 2 * kTextWindow));
  EXPECT_EQ(bytes_of(data.test_targets), text.substr(19 * kTextWindow + 1, 2 * kTextWindow));
  EXPECT_EQ(data.inputs.storage().data(), data.test_targets.storage().data());
}

TEST(TextData, TakesTheRegularFilesOfAFolderInTheOrderOfTheirNames) {
  const testing::TemporaryFolder folder;
  const std::string text = text_of(kTenWindows);
  folder.write("c", text.substr(600));
  folder.write("a", text.substr(0, 100));
  folder.write("b", text.substr(100, 500));
  folder.write("empty", "");
  const auto path = folder.path() / "texts";
  std::filesystem::create_directories(path / "more");
  for (const char* name : {"a", "b", "c", "empty"}) {
    std::filesystem::rename(folder.path() / name, path / name);
  }
  std::ofstream(path / "more" / "d") << "not read";
  std::filesystem::create_symlink("a", path / "aa");
  std::filesystem::create_symlink("absent", path / "ab");
  ASSERT_EQ(mkfifo((path / "ac").c_str(), 0600), 0);
  // Two of its bytes come to lie outside of the training windows.
  const TrainingData data = load(path);
  EXPECT_EQ(bytes_of(data.inputs), text.substr(0, 9 * kTextWindow));
  EXPECT_EQ(bytes_of(data.test_targets), text.substr(9 * kTextWindow + 1));
  // A link that the user names is followed.
  std::filesystem::create_directory_symlink(path, folder.path() / "link");
  EXPECT_EQ(bytes_of(load(folder.path() / "link").inputs), bytes_of(data.inputs));
}

TEST(TextData, RefusesPathsWithoutText) {
  const testing::TemporaryFolder folder;
  expect_refused(folder.path() / "absent", "there is no such file");
  expect_refused(folder.path(), "the folder holds no regular file");
  std::filesystem::create_directory(folder.path() / "folder");
  std::filesystem::create_symlink("absent", folder.path() / "link");
  expect_refused(folder.path(), "the folder holds no regular file");
  expect_refused(folder.path() / "link", "there is no such file");
  ASSERT_EQ(mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  expect_refused(folder.path() / "fifo", "this is not a regular file");
  expect_refused("/dev/zero", "this is not a regular file");
  expect_refused("", "there is no such file");
}

TEST(TextData, RefusesTooLittleText) {
  const testing::TemporaryFolder folder;
  folder.write("text", "");
  expect_refused(folder.path() / "text", "the text has 0 bytes, but at least 641 are needed");
  expect_refused(folder.path(), "the text has 0 bytes");
  folder.write("text", "x");
  expect_refused(folder.path() / "text", "the text has 1 byte, but");
  folder.write("text", text_of(kTenWindows - 1));
  expect_refused(folder.path() / "text", "the text has 640 bytes");
  folder.write("text", text_of(kTenWindows));
  EXPECT_NO_THROW(require_text(folder.path() / "text"));
  EXPECT_EQ(load(folder.path() / "text").test_inputs.size(0), 1);
}

// Files with holes: they take no space on the disk.
TEST(TextData, RefusesMoreThanTheMemoryHolds) {
  const testing::TemporaryFolder folder;
  constexpr off_t kOneTebibyte = off_t(1) << 40;
  folder.write("a", text_of(kTenWindows));
  folder.write("b", "");
  ASSERT_EQ(truncate((folder.path() / "b").c_str(), 8 * kOneTebibyte), 0);
  expect_refused(folder.path() / "b", "MiB of memory that are available");
  expect_refused(folder.path(), "b: with this file of 8388608.0 MiB the text takes more than");
}

TEST(TextData, RefusesRanksWithDifferentTexts) {
  const testing::TemporaryFolder folder;
  std::string text = text_of(kTenWindows);
  folder.write("0", text);
  text.back() ^= 1;
  folder.write("1", text);
  const auto load_two = [&](bool same) {
    spawn(2, [&](int rank) { load(folder.path() / (same ? "0" : std::to_string(rank))); },
          {.threads = 1, .prefix = false});
  };
  load_two(true);
  EXPECT_THAT([&] { load_two(false); },
              ThrowsMessage<RankFailed>(
                  HasSubstr("rank 0 has a text of 641 bytes, rank 1 another one of 641 bytes")));
}

}  // namespace
}  // namespace lockstep
