package customresource

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// refuseIdentity returns the answer to a request for all logical clusters that names an identity
// which is none, or that nothing here has, or that names none where there has to be one; and to one
// through a view that leads to an identity which nothing has there. Of all others it returns nil.
// Nobody learns from it what others bind: only administrators of the shard ask for all logical
// clusters, and of views only those of exports lead to identities, whose consumers let them.
func (s *Server) refuseIdentity(l definitions.Lookup, qualified bool, d *definitions.Definition) error {
	var why string
	switch {
	case s.replicas:
		return nil
	case d == nil && l.Exported && l.Cluster.Wildcard:
		why = fmt.Sprintf("no APIExport that is known here offers %s with the identity %s, and a schema that exists: correct the identityHash of the permission claim, or let the provider create the schema", l.Resource, l.Identity)
	case d == nil && l.Exported:
		why = fmt.Sprintf("%s with the identity %s is not bound in this logical cluster, whatever claims on it are accepted", l.Resource, l.Identity)
	case !l.Cluster.Wildcard:
		return nil
	case qualified && !request.ValidIdentity(l.Identity):
		why = fmt.Sprintf("%q is no identity: write the status.identityHash of an APIExport after the colon", l.Identity)
	case qualified && d == nil:
		why = fmt.Sprintf("nothing here binds %s with the identity %s: take the status.identityHash of an APIExport that offers it and has a Bound APIBinding", l.Resource, l.Identity)
	case d != nil && d.MetadataOnly:
		why = fmt.Sprintf("the %s of different logical clusters need not be of one kind: ask for those of one identity, as %s:<status.identityHash of the APIExport>, or for PartialObjectMetadata", l.Resource, l.Resource.Resource)
	default:
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: why,
		Details: &metav1.StatusDetails{Group: l.Resource.Group, Kind: l.Resource.Resource},
	}}
}
