// Package features has the feature gates of Shardplane. The flag --feature-gates sets them beside
// those of Kubernetes. Unlike these, they belong to a server and not to the process.
package features

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

// The feature gates. docs/features.md describes them.
const (
	// AllShards serves /clusters/* of all shards at the front-proxy.
	AllShards featuregate.Feature = "AllShards"
	// CachedResources replicates objects for consumers on other shards.
	CachedResources featuregate.Feature = "CachedResources"
	// CacheRelays has cache servers relay replicas between regions.
	CacheRelays featuregate.Feature = "CacheRelays"
	// HomeWorkspaces serves each user a home workspace.
	HomeWorkspaces featuregate.Feature = "HomeWorkspaces"
	// WorkspaceAuthentication accepts tokens of issuers that workspaces name.
	WorkspaceAuthentication featuregate.Feature = "WorkspaceAuthentication"
	// WorkspaceMounts has workspaces lead to other servers.
	WorkspaceMounts featuregate.Feature = "WorkspaceMounts"
)

var (
	v01 = version.MustParse("0.1")

	specs = map[featuregate.Feature]featuregate.VersionedSpecs{
		AllShards:               {{Version: v01, Default: true, PreRelease: featuregate.Beta}},
		CachedResources:         {{Version: v01, Default: true, PreRelease: featuregate.Beta}},
		CacheRelays:             {{Version: v01, Default: false, PreRelease: featuregate.Alpha}},
		HomeWorkspaces:          {{Version: v01, Default: true, PreRelease: featuregate.Beta}},
		WorkspaceAuthentication: {{Version: v01, Default: true, PreRelease: featuregate.Beta}},
		WorkspaceMounts:         {{Version: v01, Default: true, PreRelease: featuregate.Beta}},
	}
)

// Gates are the values of --feature-gates by their names.
type Gates map[string]string

// Gate returns the feature gate of a server with these values, which are those that Split accepts.
func (g Gates) Gate() (featuregate.FeatureGate, error) {
	gate := newGate()
	own, _, err := g.Split()
	if err != nil {
		return nil, err
	}
	return gate, gate.SetFromMap(own)
}

// Enabled reports whether a feature of Shardplane is on, for use at startup: it makes a Gate.
// Values that Split rejects do not count.
func (g Gates) Enabled(feature featuregate.Feature) bool {
	gate, err := g.Gate()
	return err == nil && gate.Enabled(feature)
}

// Split returns the values of Shardplane's gates, and those of others.
func (g Gates) Split() (own, others map[string]bool, err error) {
	own, others = map[string]bool{}, map[string]bool{}
	for name, value := range g {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, nil, fmt.Errorf("--feature-gates: %s=%s: the value must be true or false", name, value)
		}
		if _, ok := specs[featuregate.Feature(name)]; ok {
			own[name] = on
		} else {
			others[name] = on
		}
	}
	return own, others, nil
}

// Known returns the gates of Shardplane, for the help: name=default (stage), in order.
func Known() string {
	known := newGate().KnownFeatures()
	known = slices.DeleteFunc(known, func(line string) bool {
		return strings.HasPrefix(line, "All") && !strings.HasPrefix(line, string(AllShards))
	})
	return strings.Join(known, ", ")
}

func newGate() featuregate.MutableVersionedFeatureGate {
	gate := featuregate.NewVersionedFeatureGate(v01)
	if err := gate.AddVersioned(specs); err != nil {
		panic(err) // a mistake in the table, which every test finds
	}
	return gate
}
