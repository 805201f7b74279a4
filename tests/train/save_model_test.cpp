// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/save_model.h"

#include "data/idx_bytes.h"
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include "lockstep/core/error.h"
#include "lockstep/core/whole_file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::size_t count_entries(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

TEST(SaveModel, ReplacesAFileAndLeavesNothingElse) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "net.pt";
  folder.write("net.pt", "an older file");
  torch::nn::Sequential net(torch::nn::Linear(3, 2));
  check_can_write(file);
  save_model(net.ptr(), file);

  torch::nn::Sequential loaded(torch::nn::Linear(3, 2));
  torch::load(loaded, file.string());
  EXPECT_TRUE(loaded->parameters()[0].equal(net->parameters()[0]));
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(SaveModel, FollowsALink) {
  const testing::TemporaryFolder folder;
  folder.write("real.pt", "an older file");
  std::filesystem::create_symlink("real.pt", folder.path() / "link.pt");
  torch::nn::Sequential net(torch::nn::Linear(3, 2));
  check_can_write(folder.path() / "link.pt");
  save_model(net.ptr(), folder.path() / "link.pt");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link.pt"));
  torch::nn::Sequential loaded(torch::nn::Linear(3, 2));
  torch::load(loaded, (folder.path() / "real.pt").string());
  EXPECT_TRUE(loaded->parameters()[0].equal(net->parameters()[0]));
}

TEST(SaveModel, ThatFailsLeavesWhatWasThere) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "net.pt");
  torch::nn::Sequential net(torch::nn::Linear(3, 2));
  EXPECT_THAT([&] { save_model(net.ptr(), folder.path() / "net.pt"); },
              ThrowsMessage<BackendError>(HasSubstr("net.pt")));
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() / "net.pt"));
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(SaveModel, RefusesAPlaceThatCannotBe) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT([&] { check_can_write(folder.path() / "absent" / "net.pt"); },
              ThrowsMessage<UsageError>(HasSubstr("absent/net.pt")));
  EXPECT_THROW(check_can_write(folder.path()), UsageError);
  EXPECT_THROW(check_can_write(""), UsageError);
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(check_can_write(pipe), UsageError);
  EXPECT_THROW(check_can_write("/proc/net.pt"), UsageError);
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

}  // namespace
}  // namespace lockstep
