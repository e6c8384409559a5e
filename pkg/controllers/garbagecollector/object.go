package garbagecollector

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/storage"
)

// Item identifies an object by its storage key.
type Item string

func (i Item) prefix() string { return storage.ResourcePrefixOf(string(i)) }

// place returns the parts of the key; the zero value if the object is not in a logical cluster.
func (i Item) place() storage.ObjectKey {
	p, _ := storage.ObjectKeyOf(i.prefix(), string(i))
	return p
}

// LogicalCluster returns the logical cluster of the object.
func (i Item) LogicalCluster() logicalcluster.Name { return i.place().Cluster }

// unowned reports whether the owner references of the item are ignored: a user with write access to the LogicalCluster must
// not be able to delete it this way, because its deletion is restricted.
func unowned(i Item) bool { return i.prefix() == "/core.kcp.io/logicalclusters/" }

type object struct {
	uid                             types.UID
	version                         string
	deleting, orphaning, foreground bool
	finalizers                      []string
	references                      []metav1.OwnerReference
}

func (o *object) waits() bool { return o.deleting && o.foreground }

func (o *object) orphans() bool { return o.deleting && o.orphaning }

func objectOf(h storage.Header) object {
	return object{
		uid: h.UID, version: h.ResourceVersion, deleting: h.DeletionTimestamp != nil, finalizers: h.Finalizers, references: h.OwnerReferences,
		orphaning:  slices.Contains(h.Finalizers, metav1.FinalizerOrphanDependents),
		foreground: slices.Contains(h.Finalizers, metav1.FinalizerDeleteDependents),
	}
}

// refers reports whether the object has a reference to a UID, and whether one of them blocks the deletion of the owner.
func (o *object) refers(uid types.UID) (refers, blocks bool) {
	for i := range o.references {
		if r := &o.references[i]; r.UID == uid {
			refers = true
			blocks = blocks || isTrue(r.BlockOwnerDeletion)
		}
	}
	return refers, blocks
}

func isTrue(b *bool) bool { return b != nil && *b }

// owner is a UID in a logical cluster. Equal UIDs in different logical clusters are different owners.
type owner struct {
	cluster logicalcluster.Name
	uid     [16]byte
}

func sameReference(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name
}

// ownerOf returns the owner with a UID. UIDs that are not UUIDs are hashed. A collision only causes an unnecessary examination,
// because decisions are based on the references.
func ownerOf(cluster logicalcluster.Name, uid types.UID) owner {
	o := owner{cluster: cluster}
	if parseUUID(string(uid), &o.uid) {
		return o
	}
	sum := sha256.Sum256([]byte(uid))
	copy(o.uid[:], sum[:])
	return o
}

func parseUUID(text string, out *[16]byte) bool {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return false
	}
	var digits [32]byte
	n := copy(digits[:], text[:8])
	n += copy(digits[n:], text[9:13])
	n += copy(digits[n:], text[14:18])
	n += copy(digits[n:], text[19:23])
	copy(digits[n:], text[24:])
	_, err := hex.Decode(out[:], digits[:])
	return err == nil
}
