package relay

import (
	"testing"
)

// Whatever clients do, a tenth of the descriptors stays free.
func TestConnectionsLeaveDescriptorsToTheRelay(t *testing.T) {
	for _, tt := range []struct {
		descriptors uint64
		listeners   int
		want        int
	}{
		{0, 1, 0},       // not known
		{1 << 63, 1, 0}, // none
		{1000, 1, 900},
		{1000, 3, 300},
		{1, 4, 1},
	} {
		if got := connectionShare(tt.descriptors, tt.listeners); got != tt.want {
			t.Errorf("%d descriptors, %d listeners: got %d, want %d", tt.descriptors, tt.listeners, got, tt.want)
		}
	}
}

func TestTheOperatorsConnectionsAreNotThoseOfClients(t *testing.T) {
	for descriptors, want := range map[uint64]uint64{0: 0, 150: 150, 1024: 924} {
		if got := withoutAdmin(descriptors); got != want {
			t.Errorf("of %d descriptors %d are for clients and the rest, want %d", descriptors, got, want)
		}
	}
}
