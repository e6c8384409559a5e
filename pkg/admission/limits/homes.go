package limits

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/toplevel"
)

// HomeLimits limit each home workspace, together with all workspaces below it, on one shard; 0 means no
// limit. They exist because every user who can log in has a home workspace.
type HomeLimits struct {
	Objects, Bytes, Workspaces int64
}

const (
	//reference:limit cluster --home-workspaces-max-objects | home workspace and all workspaces below it: objects, on each shard | 403
	homeObjectsFlag = "home-workspaces-max-objects"
	//reference:limit cluster --home-workspaces-max-bytes | home workspace and all workspaces below it: size of the objects, on each shard | 403
	homeBytesFlag = "home-workspaces-max-bytes"
	//reference:limit cluster --home-workspaces-max-workspaces | home workspace and all workspaces below it: Workspaces, on each shard | 403
	homeWorkspacesFlag = "home-workspaces-max-workspaces"
)

// NewHomeLimits returns the defaults.
func NewHomeLimits() HomeLimits {
	const objects, bytes, workspaces = 20_000, 128 << 20, 100
	return HomeLimits{Objects: objects, Bytes: bytes, Workspaces: workspaces}
}

// AddFlags adds the flags of l to fs.
func (l *HomeLimits) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&l.Objects, homeObjectsFlag, l.Objects, "maximum number of objects, without Events, that a home workspace and all workspaces below it may have together on this shard; 0 means no limit. The annotation core.shardplane.io/max-subtree-objects of the home's LogicalCluster takes precedence")
	fs.Var(Quantity{&l.Bytes}, homeBytesFlag, "maximum number of bytes that a home workspace and all workspaces below it may store together on this shard; 0 means no limit. The annotation core.shardplane.io/max-subtree-bytes of the home's LogicalCluster takes precedence")
	fs.Int64Var(&l.Workspaces, homeWorkspacesFlag, l.Workspaces, "maximum number of Workspaces in a home workspace and all workspaces below it on this shard; 0 means no limit")
}

// Validate returns what is wrong with l.
func (l *HomeLimits) Validate() []error {
	if l.Objects < 0 || l.Bytes < 0 || l.Workspaces < 0 {
		return []error{errors.New("--" + homeObjectsFlag + ", --" + homeBytesFlag + " and --" + homeWorkspacesFlag + " must not be negative: use 0 for no limit")}
	}
	return nil
}

// Owners reports the storage usage of top-level owners on the shard.
type Owners interface {
	// Usage returns the usage of an owner, and whether it is known.
	Usage(owner string) (toplevel.Usage, bool)
	// UsesMost reports whether an owner stores much more than the average.
	UsesMost(owner string) bool
}

var workspaces = tenancyv1alpha1.Resource("workspaces")

// withinStorage rejects growth if the shard is nearly full: first of the owners that use most storage, then
// of all owners. Root and system logical clusters are exempt, and are limited by etcd only.
func (p *Plugin) withinStorage(ctx context.Context, w write, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	if !isLimited(cluster) || !w.create && !grows(w) {
		return nil
	}
	// Members of system:masters can free storage.
	if identity.MemberOf(ctx, w.GetUserInfo(), user.SystemPrivilegedGroup, request.GroupShards) {
		return nil
	}
	switch {
	case p.c.Usage.Full():
		return insufficient(w, "the shard is nearly full")
	case lc == nil || p.c.Owners == nil || !p.c.Usage.Filling():
		return nil
	}
	if owner := toplevel.Of(tenancy.PathOf(lc).String()); owner != "" && p.c.Owners.UsesMost(owner) {
		return insufficient(w, fmt.Sprintf("the shard is filling up, and %s with all workspaces below it stores more than 1.5 times the mean of all owners", owner))
	}
	return nil
}

// withinHome rejects writes that exceed the limits of home workspaces, unless the home has its own limit by
// annotation.
func (p *Plugin) withinHome(w write, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	owner := toplevel.Of(tenancy.PathOf(lc).String())
	if p.c.Owners == nil || !toplevel.IsHome(owner) {
		return nil
	}
	used, known := p.c.Owners.Usage(owner)
	if !known {
		return nil
	}
	if own, known := p.c.Usage.Of(cluster); known { // newer than the sum
		used.Objects, used.Bytes = max(used.Objects, own.Objects), max(used.Bytes, own.Bytes)
	}
	most := p.c.Homes
	for _, subtree := range p.c.Subtrees(owner) {
		if subtree.Path != owner {
			continue
		}
		if subtree.Most.Objects > 0 {
			most.Objects = 0
		}
		if subtree.Most.Bytes > 0 {
			most.Bytes = 0
		}
	}
	const message = "the home workspace %s and all workspaces below it have %d %s on this shard, at most %d allowed: delete objects, or have an administrator raise %s"
	byObjects, byBytes := w.over(used.Objects, most.Objects, used.Bytes, most.Bytes)
	switch {
	case byObjects:
		return admission.NewForbidden(w, fmt.Errorf(message, owner, used.Objects, "objects", most.Objects, "the annotation "+tenancy.MaxSubtreeObjectsAnnotation+" of its LogicalCluster, or --"+homeObjectsFlag))
	case byBytes:
		return admission.NewForbidden(w, fmt.Errorf(message, owner, used.Bytes, "bytes", most.Bytes, "the annotation "+tenancy.MaxSubtreeBytesAnnotation+" of its LogicalCluster, or --"+homeBytesFlag))
	case w.create && w.GetResource().GroupResource() == workspaces && most.Workspaces > 0 && used.Workspaces >= most.Workspaces:
		return admission.NewForbidden(w, fmt.Errorf(message, owner, used.Workspaces, "workspaces", most.Workspaces, "--"+homeWorkspacesFlag))
	default:
		return nil
	}
}
