package operator

import (
	"strings"
	"testing"
	"time"
)

// What a server does to some requests of a stream is a problem while it lasts.
func TestProblemsOfAStream(t *testing.T) {
	since := time.Now()
	for _, test := range []struct {
		name   string
		stream StreamStatus
		want   string // a part of the only problem, "" if there is none
	}{
		{"nothing", StreamStatus{Connected: true}, ""},
		{"suspects", StreamStatus{Quarantined: 3}, "one of 3 names of partition \"p\" is requested; the relay requests them apart: it is not known yet which"},
		{"bad", StreamStatus{Quarantined: 1, QuarantineReason: "InvalidArgument: no"}, "the relay requests them apart: InvalidArgument: no"},
		{"unsaid", StreamStatus{Unsaid: 2, UnsaidSince: &since}, "has not sent 2 of partition \"p\" again; the relay keeps them"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.stream.Partition = "p"
			p := &problems{}
			authorityProblems(p, &AuthorityStatus{Authority: "a", Streams: []StreamStatus{test.stream}}, outage{})
			switch {
			case test.want == "" && len(p.all) > 0, test.want != "" && len(p.all) != 1:
				t.Errorf("%d problems: %v", len(p.all), p.all)
			case test.want != "" && !strings.Contains(p.all[0].Text, test.want):
				t.Errorf("the problem is %q", p.all[0].Text)
			}
		})
	}
}
