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
