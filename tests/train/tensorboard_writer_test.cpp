// SPDX-License-Identifier: BSD-3-Clause
// Event files, as TensorBoard's own reader in Python reads them.
#include "lockstep/train/tensorboard_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <numeric>

#include "support/captured_warnings.h"
#include "support/limits.h"
#include "support/locations.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;
using Json = nlohmann::json;

std::string python() {
  const char* named = std::getenv("LOCKSTEP_PYTHON");
  return named != nullptr ? named : "python3";
}

class TensorBoardWriterTest : public ::testing::Test {
 protected:
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(TensorBoardWriterTest, NamesItsFileAsTensorBoardExpects) {
  const auto now = std::to_string(std::time(nullptr)).substr(0, 4);
  const TensorBoardWriter first(folder() / "a" / "b");
  const TensorBoardWriter second(folder() / "a" / "b");
  EXPECT_EQ(first.file().parent_path(), folder() / "a" / "b");
  EXPECT_THAT(first.file().filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\." + now + "......\\..+\\." +
                           std::to_string(::getpid()) + "\\.[0-9]+"));
  EXPECT_NE(first.file(), second.file());
}

TEST_F(TensorBoardWriterTest, TensorBoardReadsWhatItWrote) {
  if (testing::Program({python(), "-c", "import tensorboard"}).wait() != 0) {
    return testing::skip_or_fail("no " + python() + " with TensorBoard; set LOCKSTEP_PYTHON");
  }
  const auto before = static_cast<double>(std::time(nullptr));
  std::vector<double> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), -300.0);
  {
    TensorBoardWriter writer(folder());
    for (int step = 0; step < 2000; ++step) writer.add_scalar("loss/train", 2.0 / (step + 1), step);
    writer.add_scalar("not a number", std::nan(""), -1);
    const at::Tensor negated = torch::_neg_view(-torch::tensor(numbers, torch::kDouble));
    writer.add_histogram("weights", negated.view({10, 100}), 7);
    writer.add_histogram("weights", torch::zeros(5, torch::kHalf), 8);
    writer.add_text("notes", "**bold** \xC3\xA4\xC3\xB6", 3);
  }
  const std::string reader = std::string(testing::kSourceFolder) + "/tests/train/read_events.py";
  testing::Program program({python(), reader, folder()});
  ASSERT_EQ(program.wait(), 0) << program.err();
  const Json read = Json::parse(program.out());

  const Json& losses = read["scalars"]["loss/train"];
  ASSERT_EQ(losses.size(), 2000u);
  for (int step = 0; step < 2000; ++step) {
    EXPECT_EQ(losses[step][0], step);
    EXPECT_EQ(losses[step][1].get<float>(), static_cast<float>(2.0 / (step + 1)));
    EXPECT_NEAR(losses[step][2], before, 60);
  }
  EXPECT_EQ(read["scalars"]["not a number"][0][0], -1);
  EXPECT_TRUE(read["scalars"]["not a number"][0][1].is_null());
  EXPECT_EQ(read["texts"]["notes"], Json::parse(R"([[3, "**bold** äö"]])"));

  const Json& ramp = read["histograms"]["weights"][0];
  EXPECT_EQ(ramp["step"], 7);
  EXPECT_EQ(ramp["min"], -300);
  EXPECT_EQ(ramp["max"], 699);
  EXPECT_EQ(ramp["num"], 1000);
  EXPECT_EQ(ramp["sum"], std::accumulate(numbers.begin(), numbers.end(), 0.0));
  EXPECT_EQ(ramp["sum_squares"],
            std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0));
  const std::vector<double> limits = ramp["bucket_limit"];
  const std::vector<double> counts = ramp["bucket"];
  ASSERT_EQ(limits.size(), counts.size());
  EXPECT_TRUE(std::ranges::is_sorted(limits));
  EXPECT_EQ(counts.front(), 0);
  EXPECT_EQ(counts.back(), 0);
  for (std::size_t bucket = 1; bucket < limits.size(); ++bucket) {
    const auto within = std::ranges::count_if(
        numbers, [&](double n) { return n > limits[bucket - 1] && n <= limits[bucket]; });
    EXPECT_EQ(counts[bucket], within) << limits[bucket];
  }
  const Json& zeros = read["histograms"]["weights"][1];
  EXPECT_EQ(zeros["num"], 5);
  EXPECT_EQ(zeros["bucket"], Json::parse("[0, 5, 0]"));
}

// What TensorBoard's reader finds in the folder; null if there is no TensorBoard.
Json read_by_tensorboard(const std::filesystem::path& folder) {
  if (testing::Program({python(), "-c", "import tensorboard"}).wait() != 0) return nullptr;
  const std::string reader = std::string(testing::kSourceFolder) + "/tests/train/read_events.py";
  testing::Program program({python(), reader, folder});
  EXPECT_EQ(program.wait(), 0) << program.err();
  return Json::parse(program.out());
}

TEST_F(TensorBoardWriterTest, ReplacesBytesThatAreNotUtf8) {
  {
    TensorBoardWriter writer(folder());
    writer.add_scalar("caf\xE9/loss", 1, 1);
    writer.add_text("note", "caf\xE9 \xC3\xA4", 1);
    writer.add_histogram("\xFF", torch::ones({2}), 1);
    writer.add_scalar("after", 1, 1);
  }
  const Json read = read_by_tensorboard(folder());
  if (read.is_null()) return testing::skip_or_fail("no TensorBoard; set LOCKSTEP_PYTHON");
  EXPECT_TRUE(read["scalars"].contains("caf\uFFFD/loss"));
  EXPECT_TRUE(read["scalars"].contains("after"));
  EXPECT_TRUE(read["histograms"].contains("\uFFFD"));
  EXPECT_EQ(read["texts"]["note"][0][1], "caf\uFFFD \u00E4");
}

// As a step that GradScaler skips has.
TEST_F(TensorBoardWriterTest, HistogramsLeaveOutWhatIsNotFinite) {
  {
    TensorBoardWriter writer(folder());
    const testing::CapturedWarnings warnings;
    const double infinity = std::numeric_limits<double>::infinity();
    writer.add_histogram("some", torch::tensor({1.0, std::nan(""), -infinity}), 4);
    EXPECT_THAT(warnings.messages(),
                ElementsAre(HasSubstr("add_histogram(\"some\"), step 4: 2 of 3 elements")));
    writer.add_histogram("none", torch::full({2}, infinity), 5);
    writer.add_histogram("sparse", torch::eye(3).to_sparse(), 6);
  }
  const Json read = read_by_tensorboard(folder());
  if (read.is_null()) return testing::skip_or_fail("no TensorBoard; set LOCKSTEP_PYTHON");
  EXPECT_EQ(read["histograms"]["some"][0]["num"], 1);
  EXPECT_FALSE(read["histograms"].contains("none"));
  EXPECT_EQ(read["histograms"]["sparse"][0]["num"], 9);
}

TEST_F(TensorBoardWriterTest, APurgeForgetsTheStepsOfAnEarlierFile) {
  const auto write = [&](int first, int last, double value) {
    TensorBoardWriter writer(folder());
    if (first > 1) writer.purge(first);
    for (int step = first; step <= last; ++step) writer.add_scalar("loss", value, step);
  };
  write(1, 17, 1);
  write(11, 20, 2);
  const Json read = read_by_tensorboard(folder());
  if (read.is_null()) return testing::skip_or_fail("no TensorBoard; set LOCKSTEP_PYTHON");
  const Json& losses = read["scalars"]["loss"];
  ASSERT_EQ(losses.size(), 20u);
  for (int step = 1; step <= 20; ++step) {
    EXPECT_EQ(losses[step - 1][0], step);
    EXPECT_EQ(losses[step - 1][1], step > 10 ? 2 : 1);
  }
}

std::uintmax_t bytes_of(const TensorBoardWriter& writer) {
  return std::filesystem::file_size(writer.file());
}

TEST_F(TensorBoardWriterTest, WritesWhenFlushedAndWhenMuchHasGathered) {
  TensorBoardWriter writer(folder());
  const auto empty = bytes_of(writer);
  EXPECT_GT(empty, 0u);
  writer.add_scalar("a", 1, 0);
  writer.flush();
  const auto one = bytes_of(writer);
  EXPECT_GT(one, empty);
  writer.add_text("b", std::string(100'000, 'x'), 0);
  EXPECT_GT(bytes_of(writer), one + 100'000);
}

TEST_F(TensorBoardWriterTest, RefusesWhatHasNoNumbers) {
  TensorBoardWriter writer(folder());
  const auto add = [&](const at::Tensor& tensor) {
    return [&writer, tensor] { writer.add_histogram("w", tensor, 4); };
  };
  EXPECT_THAT(add(torch::empty(0)), ThrowsMessage<UsageError>(HasSubstr("empty")));
  EXPECT_THAT(add({}), ThrowsMessage<UsageError>(HasSubstr("undefined")));
}

TEST_F(TensorBoardWriterTest, NamesTheFolderThatItCannotMake) {
  std::ofstream(folder() / "file") << "x";
  EXPECT_THAT([&] { TensorBoardWriter(folder() / "file" / "runs"); },
              ThrowsMessage<BackendError>(AllOf(
                  HasSubstr("cannot make the folder " + (folder() / "file" / "runs").string()),
                  HasSubstr("Not a directory"))));
}

// In a process of its own, which alone sees the small disk.
TEST_F(TensorBoardWriterTest, AFullDiskIsAWarningWithPathAndReason) {
  constexpr int kNoDisk = 77;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!testing::mount_disk(folder(), 64 << 10)) ::_exit(kNoDisk);
    const testing::CapturedWarnings warnings;
    TensorBoardWriter writer(folder());
    const std::string expected =
        "cannot write the event file " + writer.file().string() + ": No space left on device";
    if (!writer.error().empty()) ::_exit(1);
    for (int attempt = 0; attempt < 2; ++attempt) {
      writer.add_text("big", std::string(200'000, 'x'), attempt);
      writer.flush();
    }
    if (writer.error() != expected) ::_exit(2);
    const auto& messages = warnings.messages();
    const bool warned = messages.size() == 1 && messages[0].find(expected) != std::string::npos;
    ::_exit(warned ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoDisk) return testing::skip_or_fail("a mount needs a namespace");
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace lockstep
