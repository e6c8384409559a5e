package replicas

import (
	"maps"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Mark is what a shard says of its replicas in a cache: everything up to these versions is there.
type Checkpoint struct {
	// Epoch tells versions apart that cannot be compared, since the shard was set back between
	// them.
	Epoch string
	// Versions are resourceVersions of the shard, by resource and group. Of one that is not
	// named nothing is said.
	Versions map[string]string
	// Partial says that the cache has only what is meant for the whole installation, of a shard
	// in another region. Where more was known, that something is missing says nothing.
	Partial bool
}

// compareEpochs tells which of two epochs came first. Those that are UUIDs of version 7 have their
// time. Of others nobody knows: then the first one is taken for the later, as a shard that was
// set back has another one than was known.
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

// reaches reports whether everything is there that another mark says to be.
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

// later returns a mark of all that two say that were seen one after the other.
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

// older reports whether one version of a shard comes before another; nothing comes before all.
func older(version, than string) bool {
	if version == "" || than == "" {
		return version == "" && than != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
