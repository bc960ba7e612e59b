package session

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Warms reports whether a Cluster is warm only when its client has been sent endpoints. Without eds_cluster_config, and
// with one that has them read from files, that is not so.
func Warms(cluster *cache.Resource) bool {
	config, _ := cluster.Last(wire.ClusterEDSConfig)
	source, _ := wire.Last(config, wire.EDSConfig)
	for _, path := range [...]protowire.Number{wire.ConfigSourcePath, wire.ConfigSourcePathConfig} {
		if from, _ := wire.Last(source, path); len(from) > 0 {
			return false
		}
	}
	return len(config) > 0
}

// Warming reports that the client has not answered a response that brought it Clusters that have to warm.
func (d *Delta) Warming() bool {
	return slices.ContainsFunc(d.unanswered, func(r sentResponse) bool { return r.had(warmed) })
}

// Warming reports that the client has not answered a response that brought it Clusters that have to warm.
func (s *SotW) Warming() bool {
	warms := func(r sentResponse) bool { return r.had(warmed) }
	return !s.answered && (warms(s.last) || slices.ContainsFunc(s.earlier, warms))
}

// NamesSecrets reports that resources of a type may name Secrets, which the client needs again with them.
func NamesSecrets(typeURL string) bool {
	t := xdstype.Of(typeURL)
	return t == xdstype.Cluster || t == xdstype.Listener || t == xdstype.Extension
}

// namesNeeded reports that resources of a type name others that the client needs again with them: endpoints, or Secrets
// if it subscribes to Secrets.
func (c *Client) namesNeeded(typeURL string) bool {
	return xdstype.Of(typeURL) == xdstype.Cluster || c.HasSecrets && NamesSecrets(typeURL)
}
