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
)

// Owner is who owns a workspace that is not ready yet, as OwnerNamed makes it of a name;
// 0 is nobody.
type Owner uint64

// OwnerNamed returns who has a name.
func OwnerNamed(name string) Owner {
	if name == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(name))
	return Owner(binary.BigEndian.Uint64(sum[:]) | 1)
}

// LogicalCluster is what a shard announces about a logical cluster it holds.
type LogicalCluster struct {
	// Name is the logical cluster's name.
	Name logicalcluster.Name
	// Shard is the shard that the object itself says it is on, if it does.
	Shard string
	// Phase is status.phase.
	Phase corev1alpha1.LogicalClusterPhaseType
	// Migrating is set while the content moves to another shard.
	Migrating bool
	// Deleting is set once the object is being deleted.
	Deleting bool
	// Type is path and name of its type.
	Type string
	// Created is the creation time in seconds.
	Created int64
}

// Workspace is what a shard announces about a workspace it holds.
type Workspace struct {
	// Parent is the logical cluster in which the Workspace object is.
	Parent logicalcluster.Name
	// Name is the workspace's name: the segment of paths.
	Name string
	// Cluster is the logical cluster it leads to; empty before scheduling.
	Cluster logicalcluster.Name
	// Phase is status.phase.
	Phase corev1alpha1.LogicalClusterPhaseType
	// Owner is who may use it before others know of it.
	Owner Owner
	// Mount is the URL that a mount leads to, Mounted whether it is one.
	Mount   string
	Mounted bool
}

var seed = maphash.MakeSeed()

// node is a logical cluster that is announced, or that announced workspaces
// lead from or to. There are as many as workspaces: it has 64 bytes.
type node struct {
	// name is in text, if it is short: so a look-up by name is in one place of the memory.
	name logicalcluster.Name
	// place is the placement that counts, or none.
	place atomic.Uint64
	// kind is the type that comes with it, or nil.
	kind atomic.Pointer[typeName]
	// uses counts placements, links from and links to the node. mark is that of the
	// placement while there is no other. Writers only.
	uses uint32
	mark mark
	text [26]byte
}

func newNode(name logicalcluster.Name) *node {
	n := &node{}
	if len(name) == 0 || len(name) > len(n.text) {
		n.name = logicalcluster.Name(strings.Clone(name.String()))
		return n
	}
	copy(n.text[:], name)
	n.name = logicalcluster.Name(unsafe.String(&n.text[0], len(name))) // which nothing changes from now on
	return n
}

func (n *node) hash() uint64        { return nameHash(n.name.String()) }
func (n *node) is(name string) bool { return n.name.String() == name }
func nameHash(name string) uint64   { return maphash.String(seed, name) }
func (n *node) placement() placement {
	return placement(n.place.Load())
}

// typeName is the name of a type that logical clusters have in common. uses counts
// announcements of them, writers only.
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

// placement says that a shard holds a logical cluster, and what it says of that, in one
// word, so that it is read and written at once. 0 is none.
//
//	bit 63  it is one        61-62  claim      60  migrating   59  deleting
//	    51-58  phase     35-50  shard      0-34  creation, in seconds
type placement uint64

const (
	placed        placement = 1 << 63
	claimShift              = 61
	placeMigrates placement = 1 << 60
	placeDeleting placement = 1 << 59
	phaseShift              = 51
	shardShift              = 35
	maxCreated              = 1<<shardShift - 1
)

// Claims are what a LogicalCluster says about the shard that it is on: another one than that
// which announces it, nothing, or that one.
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
	p := placed | claim<<claimShift | placement(phase)<<phaseShift | placement(s.number)<<shardShift | created
	if c.Migrating {
		p |= placeMigrates
	}
	if c.Deleting {
		p |= placeDeleting
	}
	return p
}

func (p placement) shard() uint16  { return uint16(p >> shardShift) }
func (p placement) phase() uint8   { return uint8(p >> phaseShift) }
func (p placement) created() int64 { return int64(p & maxCreated) }
func (p placement) claim() int     { return int(p >> claimShift & 3) }

// ready returns 1 if the logical cluster is ready, otherwise 0.
func (p placement) ready() int {
	if p.phase() == phaseReady {
		return 1
	}
	return 0
}

// mark is the generation in which a shard announced something last.
type mark uint16

// Kind is a kind of announcements.
type Kind int

// The kinds of announcements.
const (
	LogicalClusters Kind = iota
	Workspaces
	kinds
)

// shard is a shard that announced anything, itself included.
type shard struct {
	name   string
	number uint16
	url    atomic.Pointer[string]
	// The rest is the writers'.
	known bool
	held  [kinds]held
}

// held is what a shard has announced of a kind.
type held struct {
	// now is the mark of what it announces now, since the latest Begin; of total
	// announcements, seen have it.
	now         mark
	total, seen int
	// changes counts changes.
	changes uint64
}

// remember counts an announcement of now.
func (h *held) remember() {
	h.total++
	h.seen++
}

// remove counts one that is taken back.
func (h *held) remove(m mark) {
	h.total--
	if m == h.now {
		h.seen--
	}
}

// linkKey is what a link is found by.
type linkKey struct {
	parent  *node
	segment string
}

func (k linkKey) hash() uint64 {
	return maphash.String(seed, k.segment) ^ maphash.Comparable(seed, k.parent)
}

// shortName is how long a name may be that stands in a link itself.
const shortName = 18

// link leads from a parent to the logical cluster of a workspace, as one shard
// announced it. There are as many as workspaces: it has 48 bytes, and what few need is
// apart. Only its mark changes, which writers alone look at.
type link struct {
	parent *node
	// target is nil before scheduling, and of mounts.
	target *node
	rest   *linkRest
	shard  uint16
	mark   mark
	phase  uint8
	// length is that of the name, or longer than shortName if it is in rest.
	length uint8
	text   [shortName]byte
}

// linkRest is what few links have. It is immutable.
type linkRest struct {
	// name is set for names longer than shortName.
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

// same reports whether two links of one shard say the same.
func (l *link) same(other *link) bool {
	return l.target == other.target && l.phase == other.phase && l.more() == other.more()
}

func (l *link) hash() uint64 {
	if l.length > shortName {
		return linkKey{l.parent, l.rest.name}.hash()
	}
	return maphash.Bytes(seed, l.text[:l.length]) ^ maphash.Comparable(seed, l.parent)
}

func (l *link) is(key linkKey) bool {
	if l.parent != key.parent {
		return false
	}
	if l.length > shortName {
		return l.rest.name == key.segment
	}
	return string(l.text[:l.length]) == key.segment
}

func (l *link) name() string {
	if l.length > shortName {
		return l.rest.name
	}
	return string(l.text[:l.length])
}

// more returns what few links have.
func (l *link) more() linkRest {
	if l.rest == nil {
		return linkRest{}
	}
	return *l.rest
}

// The numbers of phases. Those that are not known here get numbers as they come.
const (
	phaseNone uint8 = iota
	phaseReady
	phaseUnavailable
)

func firstPhases() []corev1alpha1.LogicalClusterPhaseType {
	return []corev1alpha1.LogicalClusterPhaseType{
		phaseNone: "", phaseReady: corev1alpha1.LogicalClusterPhaseReady, phaseUnavailable: corev1alpha1.LogicalClusterPhaseUnavailable,
	}
}
