package upstream

import (
	"fmt"
	"testing"
	"time"
)

// TestNACKsHaveAPace checks that a control plane that answers each NACK with another version, which is rejected too, is
// sent few NACKs in both forms, also if it sends something good in between; and that its good versions are still
// acknowledged at once.
func TestNACKsHaveAPace(t *testing.T) {
	const lasts = 5 * time.Second
	for _, form := range []Protocol{Delta, SotW} {
		for _, good := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, something good in between: %t", form, good), func(t *testing.T) {
				run(t, Options{Protocol: form}, func(b *bench) {
					b.watch("eds", "a")
					st := b.next()
					answer := func(i int, bad bool) {
						if form == Delta {
							m := deltaResponse(t, "eds", fmt.Sprint(i), "a", fmt.Sprint("b", i))
							if bad {
								m.Resources[1].Resource.Value = []byte{0xff}
							}
							b.respond(st, m)
							st.request(t)
							return
						}
						m := sotwResponse(t, "eds", fmt.Sprint(i), "a", fmt.Sprint("b", i))
						if bad {
							m.Resources[1].Value = []byte{0xff}
						}
						b.respond(st, m)
						st.request(t)
					}
					st.request(t)
					nacks := 0
					for began := time.Now(); time.Since(began) < lasts && nacks < 1000; nacks++ {
						answer(2*nacks, true)
						if good {
							before := time.Now()
							answer(2*nacks+1, false)
							if late := time.Since(before); late > 0 {
								t.Fatalf("a good version was acknowledged after %v", late)
							}
						}
					}
					if most := nackBurst + int(lasts/nackEvery) + 1; nacks > most || nacks < nackBurst {
						t.Errorf("%d NACKs in %v, want at most %d", nacks, lasts, most)
					}
				})
			})
		}
	}
}
