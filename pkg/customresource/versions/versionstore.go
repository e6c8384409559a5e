package versions

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// rawStore is the shared store of a resource. It contains the objects of all logical clusters and identities,
// and does not depend on a definition.
type rawStore struct {
	storage.Interface
	resource schema.GroupResource
	// prefix is the prefix of its keys.
	prefix     string
	unreadable *unreadable.Record
	destroy    factory.DestroyFunc
	users      int
}

// calls limits the concurrent calls of conversion webhooks.
type calls struct {
	// conversions limits conversions of objects that are read and written, and updates the updates in which
	// the library may convert an object for its managed fields. They are separate, because readers should not
	// wait for the few updates that need it.
	conversions, updates *webhooktransport.Calls
}

// versionStore is the storage of one version of one schema. It reads from and writes to the shared store, and
// runs the schema's codec on every object.
type versionStore struct {
	storage.Interface // the shared store, for methods without objects

	raw   *rawStore
	gvk   schema.GroupVersionKind
	codec runtime.Codec
	// shape decides which objects the codec does not change; shapes, by version, compute the size of defaults.
	shape  *shape
	shapes map[string]*shape
	// projection converts stored objects of another resource; nil if there is none.
	projection *definitions.Projection
	// metadataOnly is set for metadata of objects of any schema; only the version is changed.
	metadataOnly bool
	// callsWebhook is set if a webhook converts between versions; stored is the version in which objects are
	// written.
	callsWebhook bool
	stored       schema.GroupVersion
	calls        *calls
	check        *conversionCheck
	// selects are the attributes for selectable fields; nil if there are none.
	selects *tenantstorage.Attributes

	decoded *resultCache[*unstructured.Unstructured]
	encoded *resultCache[json.RawMessage]
	// listStore is the registry for lists as JSON; nil before the first one.
	listStore atomic.Pointer[genericregistry.Store]
	// writer is the writer for the core group; nil before its first use.
	writer atomic.Pointer[CoreWriter]

	done     chan struct{}
	doneOnce sync.Once

	// uses is the number of users, and dropped is set when upstream does not need the store any more.
	// Stores.mu guards both.
	uses    int
	dropped bool
}

func newVersionStore(raw *rawStore, sch *definitions.Schema, gvk schema.GroupVersionKind, codec runtime.Codec, calls *calls, decoded, encoded *budget) *versionStore {
	stored := schema.GroupVersion{Group: gvk.Group, Version: sch.StoredVersion()}
	v := &versionStore{
		Interface:    raw.Interface,
		raw:          raw,
		gvk:          gvk,
		codec:        codec,
		shapes:       shapesOf(sch.Spec()),
		metadataOnly: sch.MetadataOnly,
		stored:       stored,
		calls:        calls,
		check:        newConversionCheck(sch, stored),
		decoded:      newResultCache[*unstructured.Unstructured](decoded),
		encoded:      newResultCache[json.RawMessage](encoded),
		done:         make(chan struct{}),
	}
	v.shape = v.shapes[gvk.Version]
	return v
}

func (v *versionStore) close() {
	v.doneOnce.Do(func() { close(v.done) })
	v.decoded.close()
	v.encoded.close()
}

// hideIdentity removes the annotation with the identity, which is internal to the storage.
func hideIdentity(u *unstructured.Unstructured) {
	metadata, _ := u.Object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if _, ok := annotations[request.IdentityAnnotation]; !ok {
		return
	}
	delete(annotations, request.IdentityAnnotation)
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
}
