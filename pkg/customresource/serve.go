package customresource

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// pauseAfter is longer than a write computes. After it, the write releases its seat, because it may be waiting
// for a conversion webhook.
const pauseAfter = 2 * time.Second

// Wrap returns a handler that serves custom resources and merged discovery and OpenAPI documents, and passes
// other requests to next. It must be called after authentication, authorization, and the filters that set the
// logical cluster and the request info. It can be called once.
func (s *Server) Wrap(next http.Handler) http.Handler {
	s.builtIns.Next = next
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serveHTTP(w, r)
		s.patterns.Trim() // writes compile patterns of objects, and of defaults in definitions
	})
}

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
	if d, ok := ctx.Value(readOnlyKey{}).(*definitions.Definition); ok {
		s.serveReadOnly(w, r, info, cluster, d)
		return
	}
	if s.builtIns.Serves(ctx, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}) {
		s.serveNext(w, r)
		return
	}
	s.serveResource(w, r, info, cluster)
}

func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, cluster request.Cluster) {
	resource, hash, qualified := strings.Cut(info.Resource, ":")
	ctx := r.Context()
	l := definitions.Lookup{
		Cluster:  cluster,
		Resource: schema.GroupResource{Group: info.APIGroup, Resource: resource},
		Version:  info.APIVersion,
		Identity: hash,
	}
	// Authorization used the name in the URL. Only the resource with this identity may be served.
	if qualified && (!request.ValidIdentity(hash) || !s.mayQualify(r.Context(), cluster, info.Verb)) {
		s.serveErrorOrNext(w, r, info, s.refuseIdentity(l, qualified, nil))
		return
	}
	if exported := request.IdentityFrom(ctx, l.Resource); exported != "" && !qualified {
		l.Identity, l.Exported = exported, true
	}
	var current *stream
	if info.Verb == "watch" {
		// Added before the definition is resolved, so that no change is missed.
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer end()
		current = s.streams.add(ctx, end, l)
		defer s.streams.remove(current)
	}

	definition, err := s.resolve(ctx, l, current)
	if err != nil {
		if _, later := apierrors.SuggestsClientDelay(err); !later {
			err = apierrors.NewInternalError(err)
		}
		writeError(w, r, info, err)
		return
	}
	if definition == nil || definition.MetadataOnly && !prefersMetadata(r) ||
		qualified && !cluster.Wildcard && !s.replicas && definition.Only == nil {
		s.serveErrorOrNext(w, r, info, s.refuseIdentity(l, qualified, definition))
		return
	}
	if prefersMetadata(r) {
		ctx = versions.WithMetadata(ctx)
	}
	if definition.Identity != request.IdentityFrom(ctx, l.Resource) {
		// For system definitions, an identity is another name of the objects without one.
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
	serveTyped(w, r, &private, used, func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo) { //nolint:contextcheck // it inherits the request's
		s.serveObjects(w, r, info, used, definition)
	})
}

// withCreation makes writes check again, immediately before a new object is stored, whether the resource is
// still served. If the definition was deleted with its objects in the meantime, nothing would delete this one.
func (s *Server) withCreation(ctx context.Context, verb string, l definitions.Lookup, before *definitions.Definition) context.Context {
	if verb != "create" && verb != "update" && verb != "patch" {
		return ctx
	}
	return versions.WithCreation(ctx, func(ctx context.Context, name string) error {
		now, err := s.sources.Resolve(ctx, l)
		switch {
		case err != nil:
			return err
		case now == nil || now.Identity != before.Identity || now.Objects != nil:
			return apierrors.NewGenericServerResponse(http.StatusNotFound, "create", l.Resource, name, "", 0, false)
		case now.Terminating:
			return refuseCreation(l.Resource, name)
		default:
			return nil
		}
	})
}

// serveErrorOrNext returns err, or calls the next handler if it is nil.
func (s *Server) serveErrorOrNext(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, err error) {
	if err != nil {
		writeError(w, r, info, err)
		return
	}
	s.serveNext(w, r)
}

// mayQualify reports whether the resource in a request may have an identity: in wildcard requests, requests for
// replicas, and requests of servers that compare replicas.
func (s *Server) mayQualify(ctx context.Context, cluster request.Cluster, verb string) bool {
	if cluster.Wildcard || s.replicas {
		return true
	}
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && verb == "get" && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup)
}

// serveObjects serves requests in the encodings that custom resources support.
func (s *Server) serveObjects(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, used *definitions.Schema, definition *definitions.Definition) {
	if prefersListOfOne(r, info) {
		writeError(w, r, info, errNoList)
		return
	}
	r, err := costed(r, info, used)
	if err != nil {
		writeError(w, r, info, err)
		return
	}
	if s.stores.Calls(used) {
		if r, err = managed(r, info); err != nil {
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
	if v := used.Version(info.APIVersion); v != nil && info.Verb == "list" && strings.Contains(r.Header.Get("Accept"), "as=Table") {
		columns := 0
		for i := range v.AdditionalPrinterColumns {
			if v.AdditionalPrinterColumns[i].Type == "string" {
				columns++
			}
		}
		r = r.WithContext(versions.WithColumns(r.Context(), columns))
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

// pauseIfSlow pauses a request if it is slow, see request.Pause, until end is called. It is unknown when the
// request waits for a webhook, because the library converts objects for managed fields without a context.
func pauseIfSlow(ctx context.Context) (end func()) {
	resume := make(chan func(), 1)
	timer := time.AfterFunc(pauseAfter, func() { resume <- request.Pause(ctx) })
	return func() {
		if !timer.Stop() {
			(<-resume)()
		}
	}
}

// resolve returns the definition of a request, and registers it with current, if that is not nil.
func (s *Server) resolve(ctx context.Context, l definitions.Lookup, current *stream) (*definitions.Definition, error) {
	for {
		definition, err := s.sources.Resolve(ctx, l)
		if err != nil || definition == nil || current == nil || s.streams.serve(current, definition) {
			return definition, err
		}
	}
}

// serveTyped translates between the encodings of a client with Go types and those that next supports.
func serveTyped(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, sch *definitions.Schema, next serveFunc) {
	encoded := contentType(r) == runtime.ContentTypeProtobuf && (info.Verb == "create" || info.Verb == "update") && info.Subresource != "scale"
	typed := scheme.Scheme.Recognizes(schema.GroupVersionKind{Group: info.APIGroup, Version: info.APIVersion, Kind: sch.Names().Kind})
	switch {
	case typed && wantsProtobuf(r) && info.Verb != "watch":
		inProtobuf(w, r, info, func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo) {
			serveTranslated(w, r, info, encoded, next)
		})
	case typed:
		serveTranslated(w, r, info, encoded, next)
	case encoded:
		writeError(w, r, info, negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML}))
	default:
		next(w, r, info)
	}
}

// serveTranslated calls next with a JSON body. encoded is set if the body is protobuf.
func serveTranslated(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, encoded bool, next serveFunc) {
	switch {
	case encoded:
		body, err := jsonOf(r)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		next(w, withBody(r, r.Method, runtime.ContentTypeJSON, body), info)
	case info.Verb == "patch" && contentType(r) == string(types.StrategicMergePatchType):
		patchStrategically(w, r, info, next)
	default:
		next(w, r, info)
	}
}

// refuseIdentity returns an error for wildcard requests, and requests to virtual workspaces, with an unknown,
// invalid or missing identity. It does not disclose bindings of other tenants. Only administrators of the shard
// send wildcard requests, and only virtual workspaces of exports have identities, with the consent of consumers.
func (s *Server) refuseIdentity(l definitions.Lookup, qualified bool, d *definitions.Definition) error {
	var why string
	switch {
	case s.replicas:
		return nil
	case d == nil && l.Exported && l.Cluster.Wildcard:
		why = fmt.Sprintf("no known APIExport offers %s with the identity %s and an existing schema: correct the identityHash of the permission claim, or ask its provider to create the schema", l.Resource, l.Identity)
	case d == nil && l.Exported:
		why = fmt.Sprintf("%s with the identity %s is not bound in this logical cluster, even if permission claims for it are accepted", l.Resource, l.Identity)
	case !l.Cluster.Wildcard:
		return nil
	case qualified && !request.ValidIdentity(l.Identity):
		why = fmt.Sprintf("%q is not an identity: specify the status.identityHash of an APIExport after the colon", l.Identity)
	case qualified && d == nil:
		why = fmt.Sprintf("no APIBinding binds %s with the identity %s: use the status.identityHash of an APIExport that offers it and has a Bound APIBinding", l.Resource, l.Identity)
	case d != nil && d.MetadataOnly:
		why = fmt.Sprintf("the %s of different logical clusters may have different schemas: request those of one identity, as %s:<status.identityHash of the APIExport>, or PartialObjectMetadata", l.Resource, l.Resource.Resource)
	default:
		return nil
	}
	err := request.NotFound(why)
	err.ErrStatus.Details = &metav1.StatusDetails{Group: l.Resource.Group, Kind: l.Resource.Resource}
	return err
}
