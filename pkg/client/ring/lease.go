package ring

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// ringLabel is on all Leases of a ring and names it.
	ringLabel = "ring.shardplane.io/ring"
	// tableAnnotation is on the Lease that has the ring's name.
	tableAnnotation = "ring.shardplane.io/table"

	// The others are on the Leases of members.
	weightAnnotation   = "ring.shardplane.io/weight"
	configAnnotation   = "ring.shardplane.io/config"
	stateAnnotation    = "ring.shardplane.io/state"
	releasedAnnotation = "ring.shardplane.io/released"
	loadedAnnotation   = "ring.shardplane.io/loaded"
	renewalsAnnotation = "ring.shardplane.io/renewals"
)

// maxWeight is the highest weight of a member.
const maxWeight = 1000

// state is what a member is up to, as its Lease says.
type state string

const (
	active state = ""
	// draining says that the member gives away what it has, and leaves.
	draining state = "draining"
	// left says that the member has ended its work and begins none.
	left state = "left"
	// expelled says the same, by a coordinator that has not heard of the member for so long.
	expelled state = "expelled"
	// missing says that somebody deleted the Lease of a member, of which nothing is known:
	// what is in its place stands still and is expelled as the member would have been.
	missing state = "missing"
)

// ended reports whether the member has ended its work and begins none.
func (s state) ended() bool { return s == left || s == expelled }

// lease is the Lease of a member.
type lease struct {
	id string
	// uid and version are those of the Lease; they are empty as long as there is none.
	uid     types.UID
	version string
	// renewals counts what the member wrote. By it a member tells its own writes, whose
	// answers were lost, from those of others.
	renewals int64
	weight   int
	// config is the digest of the member's configuration.
	config string
	state  state
	// released is the epoch of a table: the member has ended its work in all slots that move
	// away from it by that, and begins none before a later table gives them back.
	released int64
	// loaded is the epoch of a table: the member has loaded all that comes to it by moves that
	// began up to then.
	loaded int64
}

// leaseName is the name of the Lease of a member.
func leaseName(ring, id string) string { return ring + "-" + id }

// object returns the Lease as it is written.
func (l lease) object(ring string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	annotations := map[string]string{
		weightAnnotation:   strconv.Itoa(l.weight),
		configAnnotation:   l.config,
		renewalsAnnotation: strconv.FormatInt(l.renewals, 10),
	}
	if l.state != active {
		annotations[stateAnnotation] = string(l.state)
	}
	if l.released > 0 {
		annotations[releasedAnnotation] = strconv.FormatInt(l.released, 10)
	}
	if l.loaded > 0 {
		annotations[loadedAnnotation] = strconv.FormatInt(l.loaded, 10)
	}
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: leaseName(ring, l.id), UID: l.uid, ResourceVersion: l.version,
			Labels: map[string]string{ringLabel: ring}, Annotations: annotations,
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &l.id,
			LeaseDurationSeconds: wholeSeconds(duration),
			RenewTime:            &metav1.MicroTime{Time: now},
		},
	}
}

func wholeSeconds(d time.Duration) *int32 { return new(int32((d + time.Second - 1) / time.Second)) }

// leaseOf reads the Lease of a member. What cannot be read is as if it were not there: the
// member is of no use then, and in nobody's way.
func leaseOf(ring string, object *coordinationv1.Lease) lease {
	number := func(annotation string) int64 {
		n, _ := strconv.ParseInt(object.Annotations[annotation], 10, 64)
		return n
	}
	id, _ := strings.CutPrefix(object.Name, leaseName(ring, ""))
	return lease{
		id: id, uid: object.UID, version: object.ResourceVersion,
		renewals: number(renewalsAnnotation), released: number(releasedAnnotation), loaded: number(loadedAnnotation),
		weight: min(max(int(number(weightAnnotation)), 1), maxWeight),
		config: object.Annotations[configAnnotation], state: state(object.Annotations[stateAnnotation]),
	}
}

// stored is a table as a server has it.
type stored struct {
	*table

	uid     types.UID
	version string
}

// object returns the Lease of the ring with a table, in place of another one, if there is one.
func (t *table) object(ring string, replaced stored, duration time.Duration, now time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: ring, UID: replaced.uid, ResourceVersion: replaced.version,
			Labels: map[string]string{ringLabel: ring}, Annotations: map[string]string{tableAnnotation: t.String()},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &t.coordinator,
			LeaseDurationSeconds: wholeSeconds(duration),
			RenewTime:            &metav1.MicroTime{Time: now},
		},
	}
}

// tableOf reads the Lease of the ring.
func tableOf(object *coordinationv1.Lease) (stored, error) {
	t, err := parseTable(object.Annotations[tableAnnotation])
	if err != nil {
		return stored{}, fmt.Errorf("annotation %s of Lease %s cannot be read: %w; delete the Lease, and all members join anew", tableAnnotation, object.Name, err)
	}
	if object.Spec.HolderIdentity != nil {
		t.coordinator = *object.Spec.HolderIdentity
	}
	return stored{t, object.UID, object.ResourceVersion}, nil
}
