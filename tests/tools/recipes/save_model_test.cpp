// SPDX-License-Identifier: BSD-3-Clause
// Saving a net, on disks with and without room, by processes that live and that are killed.
#include "tools/recipes/save_model.h"

#include "support/kill_at_call.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::size_t count_entries(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

torch::nn::Sequential net_of(float value, std::int64_t width = 2) {
  torch::nn::Sequential net(torch::nn::Linear(3, width));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.fill_(value);
  return net;
}

// The value that fills the saved net.
float loaded(const std::filesystem::path& file) {
  torch::nn::Sequential net = net_of(0);
  torch::load(net, file.string());
  return net->parameters()[0][0][0].item<float>();
}

TEST(SaveModel, ReplacesAFileAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.pt";
  folder.write("net.pt", "an older file");
  save_model(net_of(5).ptr(), file);
  EXPECT_EQ(loaded(file), 5);
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(SaveModel, KeepsTheStandardizationBesideTheNet) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.pt";
  save_model(net_of(5).ptr(), file,
             {{"standardization.mean", torch::scalar_tensor(72.5, torch::kDouble)},
              {"standardization.deviation", torch::scalar_tensor(90.25, torch::kDouble)}});
  EXPECT_EQ(loaded(file), 5);
  torch::serialize::InputArchive archive;
  archive.load_from(file.string());
  torch::serialize::InputArchive standardization;
  archive.read("standardization", standardization);
  at::Tensor mean;
  at::Tensor deviation;
  standardization.read("mean", mean, /*is_buffer=*/true);
  standardization.read("deviation", deviation, /*is_buffer=*/true);
  EXPECT_EQ(mean.item<double>(), 72.5);
  EXPECT_EQ(deviation.item<double>(), 90.25);
}

TEST(SaveModel, WritesSafetensorsIfTheNameSaysSo) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.safetensors";
  save_model(net_of(5).ptr(), file,
             {{"standardization.mean", torch::scalar_tensor(72.5, torch::kDouble)}});
  const auto saved = read_safetensors(file).tensors;
  ASSERT_EQ(saved.size(), 3u);
  EXPECT_EQ(saved[0].name, "0.weight");
  EXPECT_EQ(saved[0].tensor[0][0].item<float>(), 5);
  EXPECT_EQ(saved[1].name, "0.bias");
  EXPECT_EQ(saved[2].name, "standardization.mean");
}

TEST(SaveModel, RefusesAPathThatCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { save_model(net_of(5).ptr(), folder.path() / "absent" / "net.pt"); },
              ThrowsMessage<UsageError>(HasSubstr("absent/net.pt")));
}

TEST(SaveModel, RefusesAnExtensionThatNamesNoFormat) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { save_model(net_of(5).ptr(), folder.path() / "net.safetensor"); },
              ThrowsMessage<UsageError>(HasSubstr(
                  "/net.safetensor: no format is known by the extension .safetensor; give ")));
  EXPECT_EQ(format_named_by("net.pth"), NamedFormat::torch);
  EXPECT_EQ(format_named_by("net"), NamedFormat::unnamed);
}

// libtorch's writer of archives aborts if it cannot write its last bytes.
TEST(SaveModel, OnAFullDiskIsAnErrorAndKeepsTheOldNet) {
  const TemporaryFolder folder;
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!mount_disk(folder.path(), 1 << 20)) return rank.report("skipped");
    const auto file = folder.path() / "net.pt";
    save_model(net_of(5).ptr(), file);
    EXPECT_THAT([&] { save_model(net_of(6, 1 << 18).ptr(), file); },  // 4 MiB
                ThrowsMessage<BackendError>(AllOf(HasSubstr("net.pt: No space left on device: 4.0"),
                                                  HasSubstr("MiB are needed, "))));
    EXPECT_EQ(loaded(file), 5);
    EXPECT_EQ(count_entries(folder.path()), 1u);
    save_model(net_of(7).ptr(), file);
    EXPECT_EQ(loaded(file), 7);
  });
  if (outcomes[0].result == "skipped") skip_or_fail("a mount needs a namespace of its own");
}

TEST(SaveModel, AKillAtAnyCallLeavesANetThatLoads) {
  if (const std::string why = why_no_tracing(); !why.empty()) return skip_or_fail(why);
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank&) {
    mount_disk(folder.path(), 1 << 20);  // in memory, where that may be: hundreds of flushes follow
    const auto file = folder.path() / "net.pt";
    const auto old_net = net_of(5);
    const auto new_net = net_of(6);
    save_model(old_net.ptr(), file);
    int olds = 0;
    int news = 0;
    for (int call = 1; killed_at_call(call, [&] { save_model(new_net.ptr(), file); }); ++call) {
      const float found = loaded(file);
      ++(found == 5 ? olds : news);
      EXPECT_TRUE(found == 5 || found == 6) << "call " << call;
      save_model(old_net.ptr(), file);
      EXPECT_EQ(count_entries(folder.path()), 1u) << "call " << call;
    }
    EXPECT_GT(olds, 10);
    EXPECT_GT(news, 1);
  });
}

}  // namespace
}  // namespace lockstep::testing
