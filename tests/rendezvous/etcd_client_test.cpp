// SPDX-License-Identifier: BSD-3-Clause
// A real etcd, and servers that answer as no etcd does.
#include "lockstep/rendezvous/etcd_client.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "support/canned_server.h"
#include "support/etcd.h"
#include "support/skip_or_fail.h"
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::CannedServer;
using testing::Etcd;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class RealEtcd : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why_not = Etcd::why_not();
    if (!why_not.empty()) return testing::skip_or_fail(why_not);
    etcd_ = std::make_unique<Etcd>();
    client_ = std::make_unique<EtcdClient>(*parse_endpoint(etcd_->endpoint()), 20s);
  }

  std::unique_ptr<Etcd> etcd_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(RealEtcd, KeepsBytesUnderKeysOfBytes) {
  const std::string bytes("\0\xff\n\"{}", 6);
  const std::int64_t lease = client_->grant_lease(60s);
  EXPECT_NE(lease, 0);
  client_->put("a/" + bytes, bytes, lease);
  client_->put("a/", "", lease);
  client_->put("b", "other", lease);
  const auto found = client_->read("a/");
  ASSERT_EQ(found.entries.size(), 2u);
  EXPECT_EQ(found.entries.at("a/" + bytes).value, bytes);
  EXPECT_EQ(found.entries.at("a/").value, "");
  EXPECT_LT(found.entries.at("a/" + bytes).made, found.entries.at("a/").made);
  EXPECT_TRUE(client_->read("nothing").entries.empty());
}

TEST_F(RealEtcd, ReplacesWhatNobodyElseHasChanged) {
  EXPECT_TRUE(client_->replace("job", 0, "one"));
  EXPECT_FALSE(client_->replace("job", 0, "two"));
  const EtcdEntry one = client_->read("job").entries.at("job");
  EXPECT_EQ(one.value, "one");
  EXPECT_TRUE(client_->replace("job", one.changed, "three"));
  EXPECT_FALSE(client_->replace("job", one.changed, "four"));
  EXPECT_FALSE(client_->remove("job", one.changed));
  const EtcdEntry three = client_->read("job").entries.at("job");
  EXPECT_EQ(three.value, "three");
  EXPECT_EQ(three.made, one.made);
  EXPECT_TRUE(client_->remove("job", three.changed));
  EXPECT_TRUE(client_->read("job").entries.empty());
}

TEST_F(RealEtcd, DropsTheKeysOfALeaseThatEnds) {
  const std::int64_t revoked = client_->grant_lease(60s);
  client_->put("revoked", "", revoked);
  client_->keep_alive(revoked);
  client_->revoke(revoked);
  client_->revoke(revoked);
  EXPECT_TRUE(client_->read("revoked").entries.empty());
  EXPECT_THROW(client_->keep_alive(revoked), LeaseLost);
  EXPECT_THROW(client_->put("revoked", "", revoked), LeaseLost);

  const std::int64_t expires = client_->grant_lease(5s);
  client_->put("expires", "", expires);
  const auto before = client_->read("expires");
  client_->wait_for_change("expires", before.revision, Deadline::after(60s), -1);
  EXPECT_TRUE(client_->read("expires").entries.empty());
}

TEST_F(RealEtcd, WaitsForAChangeOfAKeyWithThePrefix) {
  const auto before = client_->read("x/");
  std::jthread other([this] {
    client_->replace("y", 0, "");
    client_->replace("x/1", 0, "");
  });
  client_->wait_for_change("x/", before.revision, Deadline::after(60s), -1);
  EXPECT_TRUE(client_->read("x/").entries.contains("x/1"));
  // Also for one that has happened already.
  client_->wait_for_change("x/", before.revision, Deadline::after(60s), -1);
}

TEST_F(RealEtcd, EndsAWaitAtTheDeadlineAndWhenItIsWoken) {
  const auto now = client_->read("x/");
  client_->wait_for_change("x/", now.revision, Deadline::after(50ms), -1);
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC));
  client_->wait_for_change("x/", now.revision, Deadline::after(60s), bell.get());
}

TEST_F(RealEtcd, IsNotWaitedForWithoutEnd) {
  const EtcdClient hasty(*parse_endpoint(etcd_->endpoint()), 200ms);
  etcd_->signal(SIGSTOP);
  EXPECT_THROW(hasty.read("x/"), TimeoutError);
  EXPECT_THROW(hasty.wait_for_change("x/", 1, Deadline::after(60s), -1), TimeoutError);
  etcd_->signal(SIGCONT);
  client_->read("x/");
}

TEST(EtcdClient, SaysWhatIsNotEtcd) {
  for (const char* const body :
       {"", "[]", "null", "hello", "{\"kvs\":[{\"key\":\"no base64!\"}]}", "{\"kvs\":[1]}",
        "{\"kvs\":[{\"key\":[]}]}", "{\"header\":{\"revision\":\"1x\"}}", "{\"header\":7}",
        "{\"header\":{\"revision\":\"99999999999999999999\"}}", "{\"more\":true}", "<html>"}) {
    const CannedServer server(std::string("HTTP/1.0 200 OK\r\n\r\n") + body);
    const EtcdClient client(server.endpoint(), 5s);
    EXPECT_THAT([&] { client.read("x/"); },
                ThrowsMessage<BackendError>(HasSubstr("does not answer as etcd 3.4 or later does")))
        << body;
  }
}

TEST(EtcdClient, PassesOnWhatEtcdSays) {
  const CannedServer server(
      "HTTP/1.0 400 Bad Request\r\n\r\n"
      "{\"error\":\"etcdserver: user name is empty\",\"message\":\"etcdserver: user name is "
      "empty\",\"code\":3}");
  const EtcdClient client(server.endpoint(), 5s);
  EXPECT_THAT([&] { client.read("x/"); },
              ThrowsMessage<BackendError>(HasSubstr("refuses: etcdserver: user name is empty")));
  EXPECT_THAT([&] { client.wait_for_change("x/", 1, Deadline::after(5s), -1); },
              ThrowsMessage<BackendError>(HasSubstr("HTTP status 400")));
}

TEST(EtcdClient, PassesOnTheErrorsOfStreams) {
  const CannedServer server(
      "HTTP/1.0 503 Service Unavailable\r\n\r\n"
      "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"etcdserver: no leader\"}}");
  const EtcdClient client(server.endpoint(), 5s);
  EXPECT_THAT([&] { client.keep_alive(1); },
              ThrowsMessage<BackendError>(HasSubstr("refuses: etcdserver: no leader")));
}

TEST_F(RealEtcd, IsFoundByItsName) {
  const EtcdClient client({"localhost", parse_endpoint(etcd_->endpoint())->port}, 5s);
  for (int i = 0; i < 2; ++i) client.read("x/");
  etcd_->signal(SIGKILL);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(client.read("x/"), BackendError);
}

TEST(EtcdClient, DoesNotTrustTheLinesOfAWatch) {
  for (const char* const line :
       {"{\"error\":{\"message\":\"no leader\"}}\n", "[]\n", "\n", "{\"result\":7}\n"}) {
    const CannedServer server(std::string("HTTP/1.0 200 OK\r\n\r\n") + line, /*closes=*/false);
    const EtcdClient client(server.endpoint(), 5s);
    EXPECT_THAT([&] { client.wait_for_change("x/", 1, Deadline::after(60s), -1); },
                ThrowsMessage<BackendError>(HasSubstr("does not answer as etcd 3.4 or later does")))
        << line;
  }
}

}  // namespace
}  // namespace lockstep
