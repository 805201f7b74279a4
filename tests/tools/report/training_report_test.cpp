// SPDX-License-Identifier: BSD-3-Clause
// The page of one training, as text and in a real browser.
#include "tools/report/training_report.h"

#include <cmath>

#include "support/browser.h"
#include "support/skip_or_fail.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "tools/report/page.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TrainResult reported_result() {
  TrainResult result;
  result.recipe = "mlp</script><b>";
  result.mode = "ddp";
  result.ranks = 3;
  result.device = "cpu";
  result.batch_size = 64;
  result.global_batch_size = 192;
  result.learning_rate = 0.001;
  result.epochs = 5;
  result.loss = 0.1234;
  result.seconds_per_epoch = 0.5;
  result.samples_per_second = 120'000;
  result.peak_mb = 900;
  result.accuracy = 0.97;
  return result;
}

// Steps of 2 ms. Rank 2 waits least.
std::vector<RankCourse> reported_ranks(int count = 3) {
  std::vector<RankCourse> ranks;
  for (int rank = 0; rank < count; ++rank) {
    const double late = rank == count - 1 ? 0.3 : 0;
    RankCourse course{.steps = 1000, .samples = 64'000, .seconds = 2};
    course.seconds_in = {{"data", 0.05},          {"forward", 0.4 + late}, {"backward", 0.7},
                         {"launch bucket", 0.05}, {"wait", 0.5 - late},    {"optimizer", 0.2},
                         {"evaluation", 9}};
    if (rank != 1) course.seconds_in_flight = 0.8;
    course.seconds_waited_in_flight = 0.5 - late;
    for (int point = 1; point <= 100; ++point) {
      const double epoch = point * 0.05;
      course.points.push_back({.step = point * 10,
                               .epoch = epoch,
                               .loss = 2 * std::exp(-epoch) + 0.1 + 0.02 * std::sin(point + rank),
                               .learning_rate = 0.001 * std::min(1.0, epoch),
                               .samples_per_second = 32'000 + 900 * std::sin(point * 0.7 + rank),
                               .peak_mb = 290.0 + 10 * rank + std::min(point, 20)});
    }
    for (std::int64_t epoch = 1; epoch <= 5; ++epoch) {
      course.evaluations.push_back({.epoch = epoch, .loss = 1.0 / epoch, .accuracy = 0.19 * epoch});
    }
    ranks.push_back(std::move(course));
  }
  return ranks;
}

TEST(TrainingReport, HoldsTheFiguresOfEachRank) {
  const std::string page = to_html(reported_result(), reported_ranks(),
                                   "lockstep train \"mlp\" & more", "/* the library </script> */");
  EXPECT_THAT(page, HasSubstr("<h1>mlp&lt;/script&gt;&lt;b&gt;: ddp with 3 ranks</h1>"));
  EXPECT_THAT(page, HasSubstr("<td>97.00 %</td>"));
  EXPECT_THAT(page, HasSubstr("<th>wait</th>"));
  // samples/s, a step, forward, backward, launch, wait, optimizer, data, other, hidden, peak MB
  EXPECT_THAT(page, HasSubstr("<td>0</td><td>32000</td><td>2.000</td><td>0.400</td><td>0.700</td>"
                              "<td>0.050</td><td>0.500</td><td>0.200</td><td>0.050</td>"
                              "<td>0.100</td><td>38 %</td><td>310</td>"));
  EXPECT_THAT(page, HasSubstr("<td>2</td><td>32000</td><td>2.000</td><td>0.700</td><td>0.700</td>"
                              "<td>0.050</td><td>0.200</td>"));
  EXPECT_THAT(page, HasSubstr("<td>75 %</td><td>330</td>"));
  EXPECT_THAT(page, HasSubstr("<td>none</td><td>320</td>"));  // no bucket arrived
  EXPECT_THAT(page, HasSubstr("<code>lockstep train &quot;mlp&quot; &amp; more</code>"));
  EXPECT_THAT(page, Not(HasSubstr("On a GPU")));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(TrainingReport, NeedsNothingFromElsewhereAndIsNotEndedByWhatItHolds) {
  const std::string page = to_html(reported_result(), reported_ranks(), "", "library </script>");
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  EXPECT_THAT(page, Not(HasSubstr("url(")));
  EXPECT_THAT(page, HasSubstr("library <\\/script>"));
}

TEST(TrainingReport, TakesALossThatIsNoNumberAndAnUnknownPeak) {
  auto ranks = reported_ranks();
  ranks[1].points[3].loss = std::nan("");
  for (CoursePoint& point : ranks[1].points) point.peak_mb.reset();
  const std::string page = to_html(reported_result(), ranks, "", "");
  EXPECT_THAT(page, HasSubstr("\"loss\":null"));
  EXPECT_THAT(page, HasSubstr("\"peak_mb\":null"));
  EXPECT_THAT(page, HasSubstr("<td>?</td>"));
}

TEST(TrainingReport, HasNoFiguresOfATrainingWithNothingLeftToTrain) {
  TrainResult result = reported_result();
  result.loss = std::nan("");
  result.seconds_per_epoch = result.samples_per_second = 0;
  const std::string page = to_html(result, {{}, {}}, "", "");
  EXPECT_THAT(page, HasSubstr("<td>none</td><td>none</td><td>none</td><td>900</td>"));
  EXPECT_THAT(page, HasSubstr("<td>1</td><td>none</td><td>none</td>"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(TrainingReport, SaysWhatTheTimesOfAGpuAre) {
  TrainResult result = reported_result();
  result.device = "cuda:0";
  EXPECT_THAT(to_html(result, reported_ranks(), "", ""),
              HasSubstr("On a GPU, times are measured on"));
}

TEST(TrainingReport, HasTheEvaluationOfEachEpoch) {
  EXPECT_THAT(to_html(reported_result(), reported_ranks(), "", ""),
              HasSubstr("\"evaluations\":[{\"epoch\":1,\"loss\":1.0,\"accuracy\":0.19},"));
}

TEST(TrainingReport, NamesTheRankThatTheOthersWaitForAndWhy) {
  const auto page = [](const std::vector<RankCourse>& ranks) {
    return to_html(reported_result(), ranks, "", "");
  };
  std::vector<RankCourse> ranks = reported_ranks();
  EXPECT_THAT(page(ranks), HasSubstr("The others wait for rank 2, which takes 0.300 ms longer in a "
                                     "step to compute."));
  std::swap(ranks[2].seconds_in["forward"], ranks[2].seconds_in["data"]);
  ranks[2].seconds_in["backward"] = 0.3;
  EXPECT_THAT(page(ranks), HasSubstr("rank 2, which takes 0.650 ms longer in a step to get its "
                                     "data."));
  ranks.pop_back();
  EXPECT_THAT(page(ranks), HasSubstr("No rank holds up the others: each waits 0.500 ms in a step"));
  for (RankCourse& course : ranks) course.seconds_in["wait"] = 0.01;
  EXPECT_THAT(page(ranks), HasSubstr("No rank holds up the others.</p>"));
}

TEST(TrainingReport, ClaimsNothingAboutWaitingIfTheLoadExceededTheCores) {
  TrainResult result = reported_result();
  EXPECT_THAT(to_html(result, reported_ranks(), "", ""), HasSubstr("is the one that waits least"));
  result.core_wait = 0.3;
  const std::string page = to_html(result, reported_ranks(), "", "");
  EXPECT_THAT(page, HasSubstr("<p>The load exceeds the cores"));
  EXPECT_THAT(page, Not(HasSubstr("is the one that waits least")));
}

TEST(TrainingReport, NeedsARank) {
  EXPECT_THAT([] { to_html(reported_result(), {}, "", ""); },
              ThrowsMessage<UsageError>(HasSubstr("at least one rank")));
}

TEST(TrainingReport, DrawsItsChartsInABrowser) {
  if (!testing::has_browser()) return testing::skip_or_fail("there is no chromium here");
  std::string library;
  try {
    library = read_chart_library();
  } catch (const UsageError& error) {
    return testing::skip_or_fail(error.what());
  }
  const std::string page =
      to_html(reported_result(), reported_ranks(), "lockstep train mlp", library);
  for (const auto& [width, options, dark] :
       {std::tuple(1280, "", "false"), std::tuple(1280, "--force-dark-mode", "true"),
        std::tuple(390, "", "false"), std::tuple(390, "--force-dark-mode", "true")}) {
    const std::string seen = testing::page_in_browser(page, width, options);
    EXPECT_THAT(seen, Not(HasSubstr("data-error")));
    EXPECT_THAT(seen, HasSubstr("data-drawn=\"6\"")) << width;
    EXPECT_THAT(seen, HasSubstr("data-painted=\"6\"")) << width;
    EXPECT_THAT(seen, HasSubstr("data-width=\"" + std::to_string(width)));
    EXPECT_THAT(seen, HasSubstr("data-too-wide=\"false\"")) << width;
    EXPECT_THAT(seen, HasSubstr(std::string("data-dark=\"") + dark)) << width;
  }
}

}  // namespace
}  // namespace lockstep
