// SPDX-License-Identifier: BSD-3-Clause
// The page of a comparison, as text and in a real browser.
#include "tools/compare/comparison_output.h"

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
using testing::skip_or_fail;
using ::testing::ThrowsMessage;

ComparisonRow row_of(TrainingMode mode, int parts, double speedup) {
  ComparisonRow row{.speedup = speedup,
                    .cores_in_use = parts,
                    .efficiency = speedup / parts,
                    .needs = needs_of(mode)};
  row.result.recipe = "mlp</script><b>";
  row.result.mode = mode_name(mode);
  row.result.device = "cpu";
  (mode == TrainingMode::data_parallel ? row.result.replicas : row.result.ranks) = parts;
  row.result.samples_per_second = 1000 * speedup;
  row.result.epochs = 2;
  row.result.accuracy = 0.5;
  for (int point = 1; point <= 8; ++point) {
    row.result.losses.push_back({point / 4.0, 2.0 / point + 0.01 * parts});
  }
  return row;
}

Comparison reported_comparison() {
  Comparison comparison{.global_batch_size = 256, .batch_size = 64, .cores = 4};
  comparison.rows.push_back(row_of(TrainingMode::single, 1, 1));
  comparison.rows_same_rank_batch.push_back(row_of(TrainingMode::single, 1, 1));
  for (const int parts : {2, 4}) {
    comparison.rows.push_back(row_of(TrainingMode::data_parallel, parts, 0.8 * parts));
    comparison.rows.push_back(row_of(TrainingMode::distributed, parts, 0.9 * parts));
    comparison.rows_same_rank_batch.push_back(
        row_of(TrainingMode::data_parallel, parts, 0.85 * parts));
    comparison.rows_same_rank_batch.push_back(
        row_of(TrainingMode::distributed, parts, 0.95 * parts));
  }
  return comparison;
}

std::string some_page() {
  return to_html(reported_comparison(), "lockstep compare \"mlp\" & more",
                 "/* the library </script> */");
}

TEST(ComparisonReport, HoldsFiguresAndHowTheyWereMade) {
  const std::string page = some_page();
  EXPECT_THAT(page, HasSubstr("<td>ddp</td><td>4</td>"));
  EXPECT_THAT(page, HasSubstr("<h2>Global batch of 256 in every row"));
  EXPECT_THAT(page, HasSubstr("<td>3.60</td><td>90 %</td>"));
  EXPECT_THAT(page, HasSubstr("<h2>Batch of 64 on each rank or replica in every row"));
  EXPECT_THAT(page, HasSubstr("<td>3.80</td><td>95 %</td>"));
  EXPECT_THAT(page, HasSubstr("With the global batch of 256."));
  EXPECT_THAT(page, HasSubstr("<td>many machines</td>"));
  EXPECT_THAT(page, HasSubstr("<code>lockstep compare &quot;mlp&quot; &amp; more</code>"));
  EXPECT_THAT(page, HasSubstr("libtorch "));
  EXPECT_THAT(page, HasSubstr("4 cores in use"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(ComparisonReport, NeedsNothingFromElsewhere) {
  const std::string page = some_page();
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  EXPECT_THAT(page, Not(HasSubstr("url(")));
}

TEST(ComparisonReport, IsNotEndedByWhatItHolds) {
  const std::string page = some_page();
  EXPECT_THAT(page, HasSubstr("mlp&lt;/script&gt;&lt;b&gt;"));
  EXPECT_THAT(page, HasSubstr("the library <\\/script>"));
  EXPECT_THAT(page, HasSubstr("mlp<\\/script>"));
}

TEST(ComparisonReport, TakesALossThatIsNoNumber) {
  Comparison comparison = reported_comparison();
  comparison.rows[0].result.losses[3].loss = std::nan("");
  EXPECT_THAT(to_html(comparison, "", ""), HasSubstr("\"loss\":null"));
}

TEST(ComparisonReport, SaysHowToGetTheChartLibrary) {
  ::setenv("LOCKSTEP_CHART_JS", "/absent/chart.js", 1);
  EXPECT_THAT(read_chart_library,
              ThrowsMessage<UsageError>(HasSubstr("not in /absent/chart.js. Install it (Debian: "
                                                  "apt-get install libjs-chart.js)")));
  ::unsetenv("LOCKSTEP_CHART_JS");
}

TEST(ComparisonReport, DrawsItsChartsInABrowser) {
  if (!testing::has_browser()) return skip_or_fail("there is no chromium here");
  std::string library;
  try {
    library = read_chart_library();
  } catch (const UsageError& error) {
    return skip_or_fail(error.what());
  }
  const std::string page = to_html(reported_comparison(), "lockstep compare mlp", library);
  for (const auto& [width, options, dark] :
       {std::tuple(1280, "", "false"), std::tuple(390, "--force-dark-mode", "true")}) {
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
