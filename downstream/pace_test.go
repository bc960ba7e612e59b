package downstream

import (
	"testing"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"
)

// A stream's requests wait as long as a rate.Limiter would have them wait.
func TestRequestPaceIsThatOfALimiter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 1000).Draw(t, "per second"), rapid.IntRange(0, 20).Draw(t, "burst")
		var pace requestPace
		limiter := rate.NewLimiter(rate.Limit(perSecond), max(burst, 1))
		began := time.Now()
		at := time.Duration(rapid.Int64Range(-1e12, 1e12).Draw(t, "at"))
		for passed := time.Duration(0); passed < time.Hour; {
			wait := pace.take(perSecond, burst, at+passed)
			want := limiter.ReserveN(began.Add(passed), 1).DelayFrom(began.Add(passed))
			if d := wait - want; d < -time.Microsecond || d > time.Microsecond {
				t.Fatalf("after %s: a wait of %s, want %s", passed, wait, want)
			}
			if passed += wait + time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "pause")); rapid.IntRange(0, 20).Draw(t, "end") == 0 {
				break
			}
		}
	})
}
