package replicas

import (
	"maps"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Checkpoint is written by a shard: the cache contains everything up to these versions.
type Checkpoint struct {
	// Epoch distinguishes versions that cannot be compared because the shard was restored from an older backup between
	// them.
	Epoch string
	// Versions are resourceVersions of the shard, by resource and group.
	Versions map[string]string
	// Partial is set for shards in another region, of which the cache has global objects only. A missing object need
	// not be deleted then.
	Partial bool
}

// compareEpochs orders epochs by the time in UUIDs of version 7. Other epochs cannot be ordered: then the first one is
// assumed to be later, because a restored shard has a new epoch.
func compareEpochs(epoch, known string) int {
	if epoch == known {
		return 0
	}
	a, err := uuid.Parse(epoch)
	b, other := uuid.Parse(known)
	if err == nil && other == nil && a.Version() == 7 && b.Version() == 7 {
		return strings.Compare(a.String(), b.String())
	}
	return 1
}

// reaches reports whether everything in another checkpoint is included.
func (m Checkpoint) reaches(other Checkpoint) bool {
	order := compareEpochs(m.Epoch, other.Epoch)
	if order < 0 || m.Partial && !other.Partial {
		return false
	}
	for resource, version := range other.Versions {
		has, named := m.Versions[resource]
		if !named || order == 0 && older(has, version) {
			return false
		}
	}
	return true
}

// later merges two checkpoints that were received in this order.
func (m Checkpoint) later(other Checkpoint) Checkpoint {
	switch order := compareEpochs(other.Epoch, m.Epoch); {
	case order < 0:
		return m
	case order > 0:
		return other
	}
	both := Checkpoint{Epoch: m.Epoch, Versions: maps.Clone(m.Versions), Partial: m.Partial && other.Partial}
	for resource, version := range other.Versions {
		if has, named := both.Versions[resource]; !named || older(has, version) {
			if both.Versions == nil {
				both.Versions = map[string]string{}
			}
			both.Versions[resource] = version
		}
	}
	return both
}

// older reports whether one version of a shard is before another; the empty version is before all others.
func older(version, than string) bool {
	if version == "" || than == "" {
		return version == "" && than != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
