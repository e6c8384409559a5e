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

// rawStore is one shared store. Nothing that a definition says is part of it: a
// store holds the objects of all logical clusters and identities.
type rawStore struct {
	storage.Interface
	resource schema.GroupResource
	// prefix is that of its keys, and unreadable records its objects that cannot be read.
	prefix     string
	unreadable *unreadable.Record
	destroy    factory.DestroyFunc
	users      int
}

// calls bound how many conversion webhooks are called at a time.
type calls struct {
	// shown are those of objects that are read and written; managed are updates in which
	// the library may convert an object for its managed fields. Few need that, and who has to wait
	// for others that read should not wait for these.
	shown, managed *webhooktransport.Calls
}

func newCalls(limit int) *calls {
	return &calls{webhooktransport.NewCalls(limit), webhooktransport.NewCalls(limit)}
}

// view is the storage of one version of one schema: it reads from and writes to
// the shared store, and runs the schema's codec on every object that passes.
type view struct {
	storage.Interface // the shared store, for what knows no objects

	raw   *rawStore
	gvk   schema.GroupVersionKind
	codec runtime.Codec
	// shape says which objects the codec leaves as they are, and shapes, by version, what defaults add
	// to those that it does not.
	shape  *shape
	shapes map[string]*shape
	// projection is what makes objects of the resource of what is stored; nil if they are.
	projection *definitions.Projection
	// asIs is set for the view of metadata: objects of any schema, of which
	// only the version is changed.
	asIs bool
	// hooked is set where a webhook converts between versions, of which stored is the
	// one that objects are written in; calls bound how often it is called.
	hooked bool
	stored schema.GroupVersion
	calls  *calls
	// tries is what an object has to survive to be written; nil if it is nothing.
	tries *tries
	// selects are the attributes by which selectable fields select; nil if there
	// are no such fields.
	selects *tenantstorage.Attributes

	decoded *memory[*unstructured.Unstructured]
	encoded *memory[json.RawMessage]
	// listStore is the registry by which lists as JSON read, once there was one.
	listStore atomic.Pointer[genericregistry.Store]
	// writer writes objects of the group "", once there was one.
	writer atomic.Pointer[CoreWriter]

	done     chan struct{}
	doneOnce sync.Once

	// uses is how many lists are reading, dropped whether upstream has no more
	// use of the view; they belong to rawStores.mu.
	uses    int
	dropped bool
}

func newView(raw *rawStore, sch *definitions.Schema, gvk schema.GroupVersionKind, codec runtime.Codec, calls *calls, decoded, encoded *budget) *view {
	stored := schema.GroupVersion{Group: gvk.Group, Version: sch.StoredVersion()}
	v := &view{
		Interface: raw.Interface,
		raw:       raw,
		gvk:       gvk,
		codec:     codec,
		shapes:    shapesOf(sch.Spec()),
		asIs:      sch.MetadataOnly,
		stored:    stored,
		calls:     calls,
		tries:     newTries(sch, stored),
		decoded:   newMemory[*unstructured.Unstructured](decoded),
		encoded:   newMemory[json.RawMessage](encoded),
		done:      make(chan struct{}),
	}
	v.shape = v.shapes[gvk.Version]
	return v
}

// close ends the watches of the view and forgets its objects.
func (v *view) close() {
	v.doneOnce.Do(func() { close(v.done) })
	v.decoded.close()
	v.encoded.close()
}

// hideIdentity removes from an object what storage alone has to know.
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
