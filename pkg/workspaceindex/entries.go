package workspaceindex

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Owner is a hash of the owner's name of a workspace that is not ready yet; 0 means no owner.
type Owner uint64

// OwnerNamed returns the Owner of a name.
func OwnerNamed(name string) Owner {
	if name == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(name))
	return Owner(binary.BigEndian.Uint64(sum[:]) | 1)
}

// LogicalCluster is a shard's announcement of a logical cluster.
type LogicalCluster struct {
	Name logicalcluster.Name
	// Shard is the shard in the object's annotation, if any.
	Shard string
	Phase corev1alpha1.LogicalClusterPhaseType
	// Migrating is set while the content moves to another shard.
	Migrating bool
	Deleting  bool
	// Type is path and name of the workspace type.
	Type string
	// Created is the creation time in seconds.
	Created int64
}

// Workspace is a shard's announcement of a workspace.
type Workspace struct {
	// Parent is the logical cluster of the Workspace object.
	Parent logicalcluster.Name
	// Name is the segment of paths.
	Name string
	// Cluster is the target; empty before scheduling.
	Cluster logicalcluster.Name
	Phase   corev1alpha1.LogicalClusterPhaseType
	// Owner is the user who may use it before RBAC is evaluated.
	Owner Owner
	// Mount is the URL of a mount, Mounted whether it is one.
	Mount   string
	Mounted bool
}

// LogicalClusterOf returns what a LogicalCluster object announces.
func LogicalClusterOf(obj *corev1alpha1.LogicalCluster) LogicalCluster {
	_, migrating := obj.Annotations[tenancy.MigratingAnnotation]
	return LogicalCluster{
		Name:      logicalcluster.From(obj),
		Shard:     obj.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey],
		Phase:     obj.Status.Phase,
		Migrating: migrating,
		Deleting:  obj.DeletionTimestamp != nil,
		Type:      obj.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey],
		Created:   obj.CreationTimestamp.Unix(),
	}
}

// WorkspaceOf returns what a Workspace object announces.
func WorkspaceOf(obj *tenancyv1alpha1.Workspace) Workspace {
	parent := logicalcluster.From(obj)
	w := Workspace{
		Parent:  parent,
		Name:    obj.Name,
		Cluster: logicalcluster.Name(obj.Spec.Cluster),
		Phase:   obj.Status.Phase,
		Mounted: obj.Spec.Mount != nil,
	}
	if !tenancy.HasContent(obj.Status.Phase) {
		name, _ := tenancy.OwnerName(obj.Annotations, parent) // workspaces without an owner have no owner name
		w.Owner = OwnerNamed(name)
	}
	if w.Mounted {
		w.Mount = obj.Spec.URL
	}
	return w
}

var seed = maphash.MakeSeed()

// node is a logical cluster that is announced, or that announced workspaces are in or refer to. It has 64 bytes.
type node struct {
	// name refers to text if it is short, so that a lookup by name reads one cache line.
	name logicalcluster.Name
	// validPlacement is the placement of the first announcement, or 0.
	validPlacement atomic.Uint64
	// kind is the type in the valid placement, or nil.
	kind atomic.Pointer[typeName]
	// uses counts placements of, and links from and to, the node. generation is of the valid placement. Writers only.
	uses       uint32
	generation generation
	text       [26]byte
}

func newNode(name logicalcluster.Name) *node {
	n := &node{}
	if len(name) == 0 || len(name) > len(n.text) {
		n.name = logicalcluster.Name(strings.Clone(name.String()))
		return n
	}
	copy(n.text[:], name)
	n.name = logicalcluster.Name(unsafe.String(&n.text[0], len(name))) // it is immutable
	return n
}

func (n *node) hash() uint64         { return nameHash(n.name.String()) }
func (n *node) is(name string) bool  { return n.name.String() == name }
func nameHash(name string) uint64    { return maphash.String(seed, name) }
func (n *node) placement() placement { return placement(n.validPlacement.Load()) }

// typeName is the shared name of a workspace type. uses counts announcements with it. Writers only.
type typeName struct {
	name string
	uses int
}

// String returns the name, empty for none.
func (t *typeName) String() string {
	if t == nil {
		return ""
	}
	return t.name
}

// placement is a shard's announcement of a logical cluster in one atomic word; 0 is none.
//
//	bit 63  is set           61-62  claim      60  migrating   59  deleting
//	    51-58  phase     35-50  shard      0-34  creation, in seconds
type placement uint64

const (
	placementPresent  placement = 1 << 63
	claimShift                  = 61
	placementMigrates placement = 1 << 60
	placementDeleting placement = 1 << 59
	phaseShift                  = 51
	shardShift                  = 35
	maxCreated                  = 1<<shardShift - 1
)

// Claims are the shard in the LogicalCluster's annotation.
const (
	claimsOther placement = iota
	claimsNone
	claimsOwn
)

func newPlacement(s *shard, c LogicalCluster, phase uint8) placement {
	claim := claimsOther
	switch c.Shard {
	case s.name:
		claim = claimsOwn
	case "":
		claim = claimsNone
	}
	created := placement(min(max(c.Created, 0), maxCreated))
	p := placementPresent | claim<<claimShift | placement(phase)<<phaseShift | placement(s.number)<<shardShift | created
	if c.Migrating {
		p |= placementMigrates
	}
	if c.Deleting {
		p |= placementDeleting
	}
	return p
}

func (p placement) shard() uint16  { return uint16(p >> shardShift) }
func (p placement) phase() uint8   { return uint8(p >> phaseShift) }
func (p placement) created() int64 { return int64(p & maxCreated) }
func (p placement) claim() int     { return int(p >> claimShift & 3) }

func (p placement) ready() int {
	if p.phase() == phaseReady {
		return 1
	}
	return 0
}

// generation is the generation of a shard's announcement.
type generation uint16

// Kind is the kind of an announcement.
type Kind int

// The kinds of announcements.
const (
	LogicalClusters Kind = iota
	Workspaces
	kinds
)

type shard struct {
	name   string
	number uint16
	// url is nil unless the shard is announced.
	url atomic.Pointer[string]
	// tallies are for writers only.
	tallies [kinds]tally
}

// tally counts the announcements of a shard of a kind.
type tally struct {
	// now is the current generation, since the latest Begin. seen of total announcements have it.
	now         generation
	total, seen int
	changes     uint64
}

func (h *tally) remember() {
	h.total++
	h.seen++
}

func (h *tally) remove(m generation) {
	h.total--
	if m == h.now {
		h.seen--
	}
}

type linkKey struct {
	parent  *node
	segment string
}

func (k linkKey) hash() uint64 {
	return maphash.String(seed, k.segment) ^ maphash.Comparable(seed, k.parent)
}

// shortName is the maximum length of names that are stored in the link.
const shortName = 18

// link is a shard's announcement of a workspace, from its parent to its logical cluster. It has 48 bytes; rare data
// are in rest. It is immutable except for generation, which is for writers only.
type link struct {
	parent *node
	// target is nil before scheduling, and for mounts.
	target     *node
	rest       *linkRest
	shard      uint16
	generation generation
	phase      uint8
	// length is the length of the name, or more than shortName if it is in rest.
	length uint8
	text   [shortName]byte
}

// linkRest is immutable.
type linkRest struct {
	// name is set if it is longer than shortName.
	name    string
	owner   Owner
	mounted bool
	mount   string
}

func newLink(parent, target *node, s *shard, w Workspace, phase uint8) *link {
	l := &link{parent: parent, target: target, shard: s.number, phase: phase, length: shortName + 1}
	rest := linkRest{owner: w.Owner, mounted: w.Mounted, mount: strings.Clone(w.Mount)}
	if len(w.Name) <= shortName {
		l.length = uint8(copy(l.text[:], w.Name)) //nolint:gosec // it is short
	} else {
		rest.name = strings.Clone(w.Name)
	}
	if rest != (linkRest{}) {
		l.rest = &rest
	}
	return l
}

// same compares the content of two links of one shard.
func (l *link) same(other *link) bool {
	return l.target == other.target && l.phase == other.phase && l.more() == other.more()
}

func (l *link) hash() uint64 { return linkKey{l.parent, l.name()}.hash() }

func (l *link) is(key linkKey) bool { return l.parent == key.parent && l.name() == key.segment }

// name returns the name without allocation.
func (l *link) name() string {
	if l.length > shortName {
		return l.rest.name
	}
	return unsafe.String(&l.text[0], l.length) // it is immutable
}

func (l *link) more() linkRest { return ptr.Deref(l.rest, linkRest{}) }

// Numbers of phases. Other phases are numbered when they are announced.
const (
	phaseNone uint8 = iota
	phaseReady
	phaseUnavailable
)
