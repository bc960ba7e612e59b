package session

import (
	"strings"
	"testing"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

// A client's words are shown as they are, once for each response, and not at any
// length; about secrets not at all.
func TestRejectionsAreClippedCountedOnceAndKeepSecrets(t *testing.T) {
	long := strings.Repeat("é", loglines.MaxText)
	s := &subscriptions{typeURL: xdstype.ClusterV3}
	r := &sentResponse{nonce: "1"}
	n := s.reject(r, &statuspb.Status{Message: long})
	if n == nil || len(n.Reason) > loglines.MaxText+3 || !strings.HasPrefix(long, strings.TrimSuffix(n.Reason, "...")) {
		t.Errorf("a rejection of %d bytes is told in %v", len(long), n)
	}
	if again := s.reject(r, &statuspb.Status{Message: "again"}); again != nil {
		t.Errorf("the same response was rejected twice: %v", again)
	}
	for _, typeURL := range []string{xdstype.SecretV3, xdstype.SecretV2} {
		secrets := &subscriptions{typeURL: typeURL}
		if n := secrets.reject(&sentResponse{nonce: "1"}, &statuspb.Status{Message: "hush"}); strings.Contains(n.Reason, "hush") || strings.Contains(secrets.rejection, "hush") {
			t.Errorf("the secret is told: %q", n.Reason)
		}
	}
}
