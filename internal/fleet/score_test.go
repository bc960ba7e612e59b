package fleet

import (
	"fmt"
	"testing"

	"github.com/xds-relay/xds-relay/cache"
)

func ownersOf(members []string, scopes int) []string {
	owners := make([]string, scopes)
	for i := range owners {
		of, highest := scopeHash(cache.Scope{Authority: "cp.example.com", Partition: fmt.Sprint("node-", i), OldStyle: true}), uint64(0)
		for _, m := range members {
			if s := score(hashOf(m), of); s > highest {
				highest, owners[i] = s, m
			}
		}
	}
	return owners
}

func relays(n int) (members []string) {
	for i := range n {
		members = append(members, fmt.Sprintf("10.0.0.%d:18100", i+1))
	}
	return members
}

func TestOwnersHaveEqualParts(t *testing.T) {
	const scopes = 100_000
	for _, n := range []int{2, 3, 5, 10, 100} {
		owned := map[string]int{}
		for _, owner := range ownersOf(relays(n), scopes) {
			owned[owner]++
		}
		for member, k := range owned {
			if part := float64(k) * float64(n) / scopes; part < 0.8 || part > 1.25 {
				t.Errorf("%d members: %s owns %.2f times its part", n, member, part)
			}
		}
	}
}

// TestNoMemberOwnsMuchMoreThanItsPart: chance alone bounds the largest part, by how many scopes there are for each member.
// docs/fleet.md has the figures.
func TestNoMemberOwnsMuchMoreThanItsPart(t *testing.T) {
	const fleets, exceptions = 40, 2 // one in 20
	for _, tt := range []struct {
		members, scopes int
		most            float64 // times the part
	}{
		{3, 90, 1.35}, {3, 300, 1.25}, {3, 900, 1.15}, {10, 300, 1.6}, {10, 1000, 1.35}, {10, 3000, 1.2}, {10, 10_000, 1.15},
	} {
		above := 0
		for i := range fleets {
			var members []string
			for j := range tt.members {
				members = append(members, fmt.Sprintf("10.%d.%d.7:18100", i, j))
			}
			owned := map[string]int{}
			largest := 0
			for _, owner := range ownersOf(members, tt.scopes) {
				owned[owner]++
				largest = max(largest, owned[owner])
			}
			if float64(largest*tt.members) > tt.most*float64(tt.scopes) {
				above++
			}
		}
		if above > exceptions {
			t.Errorf("%d members, %d scopes: in %d of %d fleets, a member owns more than %.2f times its part", tt.members, tt.scopes, above, fleets, tt.most)
		}
	}
}

func TestOnlyTheScopesOfAMemberThatGoesMove(t *testing.T) {
	members := relays(5)
	before, after := ownersOf(members, 10_000), ownersOf(members[1:], 10_000)
	moved := 0
	for i := range before {
		switch {
		case before[i] == members[0]:
			moved++
		case before[i] != after[i]:
			t.Fatalf("scope %d moved from %s, which stays, to %s", i, before[i], after[i])
		}
	}
	if moved < 1_500 || moved > 2_500 {
		t.Errorf("the member owned %d of 10,000 scopes, want about 2,000", moved)
	}
}
