// Package admin serves the Shards that a shard has read from root or from a cache server, even if these are unreachable
// now. The objects are read-only, for administrators and shards (authz.WithAdminGate):
//
//	/services/admin/apis/core.kcp.io/v1alpha1/shards
package admin

import (
	"errors"
	"net/http"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// minWatchTimeout applies to watches without a timeout.
const minWatchTimeout = 30 * time.Minute

var verbs = definitions.Verbs{Object: []string{"get", "list", "watch"}}

// Config configures the virtual workspace.
type Config struct {
	// Shards is an informer, which the caller runs.
	Shards *client.Informer[*corev1alpha1.Shard]
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
}

// NewAdminVirtualWorkspace returns the filter that serves requests for request.Admin.
func NewAdminVirtualWorkspace(config Config) func(http.Handler) http.Handler {
	served := newBoard(config.Shards)
	gv := corev1alpha1.SchemeGroupVersion
	scope := &handlers.RequestScope{
		Namer:            handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: true},
		Serializer:       withoutProtobuf{kinds.Codecs},
		Convertor:        kinds.Scheme,
		Kind:             gv.WithKind("Shard"),
		Resource:         shards.WithVersion(gv.Version),
		TableConvertor:   served,
		MetaGroupVersion: metav1.SchemeGroupVersion,
		HubGroupVersion:  gv,
	}
	list, get := handlers.ListResource(served, served, scope, false, minWatchTimeout), handlers.GetResource(served, scope)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if request.ScopeFrom(r.Context()).Mount != request.Admin {
				next.ServeHTTP(w, r)
				return
			}
			info, ok := genericapirequest.RequestInfoFrom(r.Context())
			if !ok {
				respond(w, r, apierrors.NewInternalError(errors.New("no request info in the context")))
				return
			}
			resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
			switch {
			case !info.IsResourceRequest && config.ServeDocuments(w, r.WithContext(definitions.WithVerbs(r.Context(), shards, verbs)), map[schema.GroupResource]bool{shards: true}, nil):
			case resource != shards, info.APIVersion != gv.Version, info.Subresource != "", info.Namespace != "":
				respond(w, r, request.NotFound("only shards of "+gv.String()+", discovery and OpenAPI are served here"))
			case info.Verb == "list", info.Verb == "watch":
				instrument(info.Verb, list)(w, r)
			case info.Verb == "get":
				instrument(info.Verb, get)(w, r)
			default:
				respond(w, r, apierrors.NewMethodNotSupported(shards, info.Verb))
			}
		})
	}
}

// instrument counts requests in the same metrics as upstream's handlers.
func instrument(verb string, handler http.HandlerFunc) http.HandlerFunc {
	return metrics.InstrumentHandlerFunc(map[string]string{"list": "LIST", "watch": "WATCH", "get": "GET"}[verb],
		shards.Group, corev1alpha1.SchemeGroupVersion.Version, shards.Resource, "", "cluster", metrics.APIServerComponent, false, "", handler)
}

func respond(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, kinds.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}

// withoutProtobuf encodes only JSON and YAML, because Shards have no protobuf encoding.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	var all []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType == runtime.ContentTypeJSON || info.MediaType == runtime.ContentTypeYAML {
			all = append(all, info)
		}
	}
	return all
}

var shards = corev1alpha1.Resource("shards")

var errNotSynced error = request.Unavailable("this shard has not read the Shards yet, neither from root nor from a cache server")

// newBoard serves the Shards with resourceVersions of its own, because they are read from root or from a cache server.
func newBoard(informer *client.Informer[*corev1alpha1.Shard]) *board.Reader {
	b := board.NewBoard(func() error {
		if !informer.HasSynced() {
			return errNotSynced
		}
		return nil
	})
	informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(obj *corev1alpha1.Shard, _ bool) { b.Set(obj.Name, obj) },
		OnUpdate: func(_, obj *corev1alpha1.Shard) { b.Set(obj.Name, obj) },
		OnDelete: func(last *corev1alpha1.Shard, _ bool) { b.Set(last.Name, nil) },
	})
	return b.Read(board.Content{
		Resource: shards,
		Show: func(obj client.Object, version string) client.Object {
			shown := &corev1alpha1.Shard{}
			if shard, ok := obj.(*corev1alpha1.Shard); ok {
				shown = shard.DeepCopy()
			}
			shown.ResourceVersion = version
			return shown
		},
		Fields: func(obj client.Object) fields.Set { return fields.Set{"metadata.name": obj.GetName()} },
		List: func(meta metav1.ListMeta, shown []client.Object) runtime.Object {
			list := &corev1alpha1.ShardList{ListMeta: meta, Items: make([]corev1alpha1.Shard, 0, len(shown))}
			for _, obj := range shown {
				if shard, ok := obj.(*corev1alpha1.Shard); ok {
					list.Items = append(list.Items, *shard)
				}
			}
			return list
		},
	})
}
