package customresource

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// pauseAfter is for how long a write has its seat that may wait for a conversion
// webhook: all that it computes takes less.
const pauseAfter = 2 * time.Second

// Wrap returns a handler that serves custom resources and merged discovery and
// OpenAPI documents, and passes everything else to next. It must come after
// authentication and authorization, and after the filters that put the logical
// cluster and the request info into the context. It can be called once.
func (s *Server) Wrap(next http.Handler) http.Handler {
	s.builtIns.Next = next
	return s.trimmingPatterns(s.serveHTTP)
}

// serveNext passes a request on.
func (s *Server) serveNext(w http.ResponseWriter, r *http.Request) {
	s.builtIns.Next.ServeHTTP(w, r)
}

func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	cluster, clustered := request.ClusterFrom(ctx)
	if !ok || !clustered {
		s.serveNext(w, r)
		return
	}
	if !info.IsResourceRequest {
		if !s.documents.Serve(w, r, cluster) {
			s.serveNext(w, r)
		}
		return
	}
	if d := readOnlyFrom(ctx); d != nil {
		s.serveReadOnly(w, r, info, cluster, d)
		return
	}
	if s.builtIns.Serves(ctx, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}) {
		s.serveNext(w, r)
		return
	}
	s.serveResource(w, r, info, cluster)
}

// trimmingPatterns bounds the patterns that writes compile: those of objects, and of definitions, whose
// defaults are validated.
func (s *Server) trimmingPatterns(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next(w, r)
		s.patterns.Trim()
	})
}

// serveResource serves a request for what may be a custom resource.
func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, cluster request.Cluster) {
	resource, hash, qualified := strings.Cut(info.Resource, ":")
	ctx := r.Context()
	l := definitions.Lookup{
		Cluster:  cluster,
		Resource: schema.GroupResource{Group: info.APIGroup, Resource: resource},
		Version:  info.APIVersion,
		Identity: hash,
	}
	// Authorization has decided about the name as it is in the URL: nothing else than what
	// it takes for such a resource may be served.
	if qualified && (!request.ValidIdentity(hash) || !s.mayQualify(r.Context(), cluster, info.Verb)) {
		s.serveNone(w, r, info, s.refuseIdentity(l, qualified, nil))
		return
	}
	if viewed := request.IdentityFrom(ctx, l.Resource); viewed != "" && !qualified {
		l.Identity, l.Exported = viewed, true
	}
	var current *stream
	if info.Verb == "watch" {
		// Registered before the definition is resolved, so that no change of it
		// goes unseen.
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer end()
		current = s.streams.add(ctx, end, l)
		defer s.streams.remove(current)
	}

	definition, err := s.resolve(ctx, l, current)
	if _, later := apierrors.SuggestsClientDelay(err); later {
		writeError(w, r, info, err)
		return
	}
	if err != nil {
		writeError(w, r, info, apierrors.NewInternalError(err))
		return
	}
	if definition == nil || definition.MetadataOnly && !asksForMetadata(r) ||
		qualified && !cluster.Wildcard && !s.replicas && definition.Only == nil {
		s.serveNone(w, r, info, s.refuseIdentity(l, qualified, definition))
		return
	}
	if asksForMetadata(r) {
		ctx = versions.WithMetadata(ctx)
	}
	if definition.Identity != request.IdentityFrom(ctx, l.Resource) {
		// Of what the system has, identities are other names of the objects without one.
		ctx = request.WithIdentity(ctx, l.Resource, definition.Identity)
	}
	if definition.Provider != "" {
		ctx = request.WithProvider(ctx, definition.Provider)
	}
	if definition.Only != nil {
		ctx = claims.WithSet(ctx, definition.Only)
	}
	if definition.Objects != nil {
		s.serveReadOnly(w, r.WithContext(ctx), info, cluster, definition)
		return
	}
	used := s.table.Acquire(definition.Schema)
	defer func() { s.table.Release(used, time.Now()) }()
	ctx = s.withCreation(ctx, info.Verb, l, definition)

	private := *info
	private.Resource = resource
	r = r.WithContext(genericapirequest.WithRequestInfo(ctx, &private))
	s.serveTyped(w, r, &private, used, func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo) { //nolint:contextcheck // it inherits the request's
		s.serveObjects(w, r, info, used, definition)
	})
}

// withCreation has a request to write ask once more, right before it stores a new object, whether the
// resource is served as it was when the request came. Webhooks may have kept it waiting, while what has
// the resource served was deleted with all objects: nobody would serve another one.
func (s *Server) withCreation(ctx context.Context, verb string, l definitions.Lookup, then *definitions.Definition) context.Context {
	if verb != "create" && verb != "update" && verb != "patch" {
		return ctx
	}
	return versions.WithCreation(ctx, func(ctx context.Context, name string) error {
		now, err := s.sources.Resolve(ctx, l)
		switch {
		case err != nil:
			return err
		case now == nil || now.Identity != then.Identity || now.Objects != nil:
			return apierrors.NewGenericServerResponse(http.StatusNotFound, "create", l.Resource, name, "", 0, false)
		case now.Terminating:
			return refuseCreation(l.Resource, name)
		default:
			return nil
		}
	})
}

// serveNone answers a request for what is no custom resource here: with why, or as whoever is next
// does.
func (s *Server) serveNone(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, why error) {
	if why != nil {
		writeError(w, r, info, why)
		return
	}
	s.serveNext(w, r)
}

// mayQualify reports whether a request may say of which identity the objects are. For all logical
// clusters it has to. In one of them that is for replicas, and for servers that compare these with
// what they are of: others name the resource without.
func (s *Server) mayQualify(ctx context.Context, cluster request.Cluster, verb string) bool {
	if cluster.Wildcard || s.replicas {
		return true
	}
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && verb == "get" && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup)
}

// serveObjects serves a request for custom resources with the schema of a definition, in the
// encodings that custom resources have.
func (s *Server) serveObjects(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, used *definitions.Schema, definition *definitions.Definition) {
	if asksForListOfOne(r, info) {
		writeError(w, r, info, errNoList)
		return
	}
	r, err := s.costed(w, r, info, used)
	if err != nil {
		writeError(w, r, info, err)
		return
	}
	if s.stores.Calls(used) {
		if r, err = s.managed(w, r, info); err != nil {
			writeError(w, r, info, err)
			return
		}
		if info.Verb == "update" || info.Verb == "patch" {
			defer pauseIfSlow(r.Context())()
		}
	}
	if s.serveList(w, r, info, used) || s.serveCoreWrite(w, r, info, used, definition.Terminating) {
		return
	}
	crd := used.CRD()
	if definition.Terminating {
		crd = used.TerminatingCRD()
	}
	if definition.MetadataOnly {
		r.Header = onlyMetadata(r.Header)
	}
	s.serveUpstream(w, r, info, crd)
}

// pauseIfSlow pauses the request of ctx, see request.Pause, when it takes long, until
// end. For managed fields the library converts objects without a context, so that
// nobody knows when such a request waits for the webhook: many in many logical clusters
// would take all seats.
func pauseIfSlow(ctx context.Context) (end func()) {
	var (
		mu     sync.Mutex
		ended  bool
		resume = func() {}
	)
	timer := time.AfterFunc(pauseAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			resume = request.Pause(ctx)
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		ended = true
		resume()
	}
}

// resolve asks the sources for a definition, until what they say holds for a
// stream, if current is one.
func (s *Server) resolve(ctx context.Context, l definitions.Lookup, current *stream) (*definitions.Definition, error) {
	for {
		definition, err := s.sources.Resolve(ctx, l)
		if err != nil || definition == nil || current == nil || s.streams.serve(current, definition) {
			return definition, err
		}
	}
}

// serveTyped has next serve a request in the encodings that it knows, and translates where
// the client speaks by a Go type.
func (s *Server) serveTyped(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, sch *definitions.Schema, next serveFunc) {
	encoded := contentType(r) == runtime.ContentTypeProtobuf && (info.Verb == "create" || info.Verb == "update") && info.Subresource != "scale"
	typed := scheme.Scheme.Recognizes(schema.GroupVersionKind{Group: info.APIGroup, Version: info.APIVersion, Kind: sch.Names().Kind})
	if !typed {
		if encoded {
			writeError(w, r, info, negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML}))
			return
		}
		next(w, r, info)
		return
	}
	if wantsProtobuf(r) && info.Verb != "watch" {
		inProtobuf(w, r, info, func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo) {
			s.serveTranslated(w, r, info, encoded, next)
		})
		return
	}
	s.serveTranslated(w, r, info, encoded, next)
}

// serveTranslated has next serve a request as JSON. encoded reports whether the body is an
// object in protobuf.
func (s *Server) serveTranslated(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, encoded bool, next serveFunc) {
	switch {
	case encoded:
		body, err := s.jsonOf(w, r)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		next(w, withBody(r, r.Method, runtime.ContentTypeJSON, body), info)
	case info.Verb == "patch" && contentType(r) == string(types.StrategicMergePatchType):
		s.patchStrategically(w, r, info, next)
	default:
		next(w, r, info)
	}
}
