package frontproxy

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
)

// ownIdentity are the headers that servers of an installation send each other.
var ownIdentity = identityHeaders{prefixes: []string{authn.HeaderPrefix, request.InternalHeaderPrefix}}

// identityHeaders are headers by which only the front-proxy may say something: those that
// have a name, and those that begin with a prefix. From outside they count for nothing.
type identityHeaders struct{ names, prefixes []string }

// drop removes them.
func (i identityHeaders) drop(header http.Header) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		name = strings.ReplaceAll(name, "_", "-")
		return slices.ContainsFunc(i.names, func(own string) bool { return strings.EqualFold(name, own) }) ||
			slices.ContainsFunc(i.prefixes, func(own string) bool {
				return len(name) >= len(own) && strings.EqualFold(name[:len(own)], own)
			})
	})
}

const (
	// maxHeaderBytes is how many bytes of headers go to a shard, which takes Go's
	// default, less what the front-proxy adds beside who somebody is.
	maxHeaderBytes = http.DefaultMaxHeaderBytes - 16<<10
	// fieldBytes is what HTTP/2 counts for each field beside its name and value.
	fieldBytes = 32
)

// tooLarge says why a request cannot be sent to a shard with a user's groups and
// attributes in its headers; nil where it can. That does not depend on where it
// is meant to go.
func tooLarge(r *http.Request, who user.Info) *apierrors.StatusError {
	size := len(r.RequestURI) + len(r.Host)
	field := func(name string, values ...string) {
		for _, value := range values {
			size += len(name) + len(value) + fieldBytes
		}
	}
	for name, values := range r.Header {
		field(name, values...)
	}
	field(authn.HeaderUser, who.GetName())
	field(authn.HeaderGroup, who.GetGroups()...)
	for key, values := range who.GetExtra() {
		field(authn.HeaderExtraPrefix+key, values...)
	}
	if size <= maxHeaderBytes {
		return nil
	}
	return statusError(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonRequestEntityTooLarge, 0,
		"the headers of the request, with the groups and extra attributes of the user, take %d bytes on the way to a shard, and may take %d: have the issuer of the user name fewer groups",
		size, maxHeaderBytes)
}

type tokenKey struct{}

// withCredentials takes identity headers off requests from outside, and keeps
// the tokens of the development cluster, which authentication takes off: they
// are passed on to shards, which have to accept them themselves.
func withCredentials(next http.Handler, own identityHeaders, devTokens map[string]*user.DefaultInfo) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own.drop(r.Header)
		if len(devTokens) > 0 {
			if token, _ := authn.BearerToken(r.Header); devTokens[token] != nil {
				r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, token))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// passedOn returns the token that goes to the shard instead of the user; empty
// for users that are not known by a token of the development cluster.
func passedOn(ctx context.Context, who user.Info, devTokens map[string]*user.DefaultInfo) string {
	token, _ := ctx.Value(tokenKey{}).(string)
	if known := devTokens[token]; known != nil && known.Name == who.GetName() && known.UID == who.GetUID() {
		return token
	}
	return ""
}
