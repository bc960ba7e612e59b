package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A stream with 100 names starts and receives all of them, alternately from a relay without a rollout, and from one
// with an idle rollout. "x" is the ratio of the medians, with the rollout to without.
func BenchmarkStreamStartWithARollout(b *testing.B) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("service-", i))
	}
	for _, rollout := range []string{"types: [secret]", "types: [endpoint]"} {
		b.Run(rollout, func(b *testing.B) {
			starts := [2]func(){benchStarts(b, names, "", "", false), benchStarts(b, names, ", rollout: {"+rollout+"}", "", false)}
			var took [2][]time.Duration
			turn := 0
			for b.Loop() {
				turn = 1 - turn // neither is always the first
				for range starts {
					turn = 1 - turn
					began := time.Now()
					starts[turn]()
					took[turn] = append(took[turn], time.Since(began))
				}
			}
			median := func(all []time.Duration) float64 {
				slices.Sort(all)
				return float64(all[len(all)/2])
			}
			b.ReportMetric(median(took[1])/median(took[0]), "x")
		})
	}
}
