package envoy

import "testing"

// An Envoy starts with nothing, gets its first resources, and follows changes of each kind.
func TestEnvoyStartsAndFollowsChanges(t *testing.T) {
	play(t, scenario{
		planes: []kind{snapshots, linear, scripted},
		run: func(s *side) {
			first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
			s.push(func(w world) { s.shop(w, "one", first) })
			s.step("requests reach the first backend", s.reaches(first))
			s.step("Envoy is live", s.envoy.live)
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("requests reach other endpoints", s.reaches(second))
			s.push(func(w world) { s.shop(w, "two", third) })
			s.step("requests reach another cluster", s.reaches(third))
			s.push(func(w world) {
				w.set("three", s.listener("three", s.newAddress(), "routes"))
			})
			s.step("there is another listener", s.reaches(third))
		},
	})
}
