// Package rbac authorizes by the roles and bindings of each logical cluster, and the system's, which apply in all.
//
//	informers of roles and bindings, wildcard
//	        │ events
//	        ▼
//	     Index ── per logical cluster: bindings by subject and namespace, roles by name
//	        ▲
//	        │ lookups, no lists
//	     Authorizer ── Authorize, RulesFor (for reviews), RulesOf and RulesIn (for escalation checks)
//	        ▲
//	        │ waits briefly for
//	     freshness ── local writes that have not arrived in the Index yet
//
// The cost of a decision depends on the bindings of the user in one logical cluster, and not on the number of
// logical clusters.
package rbac

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

var errNotSynced = fmt.Errorf("%w: the roles and bindings of this server have not been read, try again", client.ErrIncomplete)

// Config configures New.
type Config struct {
	// Index contains the roles and bindings of all logical clusters of the server.
	Index *Index
	// Global contains replicas from other servers, for logical clusters on them; may be nil. System rules are
	// never read from it, because each server has its own.
	Global *Shards
	// Local reports whether the server has a logical cluster; nil means none. Replicas of such logical
	// clusters are ignored, because they may be outdated replicas of another server.
	Local func(name logicalcluster.Name) bool
	// System is the logical cluster whose bindings apply, and whose cluster roles can be bound, in all others.
	System logicalcluster.Name
	// HasSynced reports whether Index is complete; nil means true.
	HasSynced func() bool
}

// Authorizer authorizes by the roles and bindings of the logical cluster of a context. It allows or has no opinion.
type Authorizer struct {
	authorizer.AuthorizerFunc
	Config
}

// NewRBACAuthorizer returns an Authorizer.
func NewRBACAuthorizer(c Config) *Authorizer {
	z := &Authorizer{Config: c}
	z.AuthorizerFunc = z.authorize
	return z
}

func (z *Authorizer) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, err := z.waitFresh(ctx)
	if err != nil || a.GetUser() == nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	var (
		by      *binding
		allowed subjectKey
		failure failures
	)
	err = z.visit(ctx, name, identity.In(name, a.GetUser()), a.GetNamespace(), func(b *binding, subject subjectKey, rule *rbacv1.PolicyRule) bool {
		switch {
		case rule == nil:
			failure.add(b.ref)
		case Allows(a, rule):
			by, allowed = b, subject
			return false
		}
		return true
	})
	switch {
	case by != nil:
		return authorizer.DecisionAllow, "RBAC: allowed by " + by.describe(allowed), nil
	case err != nil:
		return authorizer.DecisionNoOpinion, "", err
	case failure.n > 0:
		return authorizer.DecisionNoOpinion, fmt.Sprintf("RBAC: %v", failure.aggregate()), nil
	default:
		return authorizer.DecisionNoOpinion, "", nil
	}
}

// RulesFor implements authorizer.RuleResolver. The result is complete unless there are too many rules, which
// the error reports. Paths are sorted because clients compare them.
func (z *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rules, err := z.RulesOf(ctx, u, namespace)
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, rule := range rules {
		if len(rule.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			urls := slices.Sorted(slices.Values(rule.NonResourceURLs))
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: rule.Verbs, NonResourceURLs: urls})
		}
	}
	slices.SortFunc(paths, func(a, b authorizer.NonResourceRuleInfo) int {
		return cmp.Or(slices.Compare(a.GetNonResourceURLs(), b.GetNonResourceURLs()), slices.Compare(a.GetVerbs(), b.GetVerbs()))
	})
	return resources, paths, errors.Is(err, errManyRules), err
}

// RulesOf returns the rules of u in the namespace, including those for all namespaces. The error lists roles
// that do not exist, and reports if rules were omitted because there are too many.
func (z *Authorizer) RulesOf(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	name, err := z.waitFresh(ctx)
	if err != nil {
		return nil, err
	}
	var rules collected
	var failure failures
	err = z.visit(ctx, name, identity.In(name, u), namespace, func(b *binding, _ subjectKey, rule *rbacv1.PolicyRule) bool {
		if rule == nil {
			failure.add(b.ref)
			return true
		}
		return rules.add(rule)
	})
	if err != nil {
		return nil, err
	}
	if rules.truncated {
		return rules.list, utilerrors.NewAggregate([]error{errManyRules, failure.aggregate()})
	}
	return rules.list, failure.aggregate()
}

// failures collects the errors of bindings whose roles do not exist.
type failures struct {
	n     int
	first []error
}

func (f *failures) add(missing rbacv1.RoleRef) {
	if f.n++; f.n <= maxFailures {
		f.first = append(f.first, notFound(missing))
	}
}

func (f *failures) aggregate() error {
	if f.n > maxFailures {
		return utilerrors.NewAggregate(append(f.first, fmt.Errorf("and %d more", f.n-maxFailures)))
	}
	return utilerrors.NewAggregate(f.first)
}

// RulesIn returns the rules of the role that a binding in the namespace refers to. It returns a NotFound
// error, or a Forbidden error if there are too many rules.
func (z *Authorizer) RulesIn(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	name, err := z.waitFresh(ctx)
	if err != nil {
		return nil, err
	}
	return z.Index.rulesIn(ctx, name, z.System, ref, namespace)
}

// Wrote makes decisions in a logical cluster wait briefly until the index has seen a write.
func (z *Authorizer) Wrote(name logicalcluster.Name, resource, resourceVersion string) {
	z.Index.fresh.wrote(name, resource, resourceVersion, time.Now())
}

// CaughtUp reports whether decisions in the logical cluster need not wait for writes.
func (z *Authorizer) CaughtUp(name logicalcluster.Name) bool {
	return !z.Index.fresh.pendingIn(name, time.Now())
}

// waitFresh returns the logical cluster of ctx after the index has caught up.
func (z *Authorizer) waitFresh(ctx context.Context) (logicalcluster.Name, error) {
	if z.HasSynced != nil && !z.HasSynced() {
		return "", errNotSynced
	}
	name, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return "", err
	}
	z.Index.fresh.wait(ctx, name)
	if name != z.System {
		z.Index.fresh.wait(ctx, z.System)
	}
	return name, nil
}

// visit visits the index, and the replicas unless f has stopped.
func (z *Authorizer) visit(ctx context.Context, name logicalcluster.Name, identities []user.Info, namespace string, f visitor) error {
	more, err := z.Index.visit(ctx, name, z.System, identities, namespace, f)
	if !more || z.Global == nil || z.Local != nil && z.Local(name) {
		return err
	}
	return z.Global.visit(ctx, name, z.Index, z.System, identities, namespace, f)
}

// describe describes the binding for the audit log.
func (b *binding) describe(subject subjectKey) string {
	kind := "User"
	if subject.kind == kindGroup {
		kind = "Group"
	}
	text := fmt.Sprintf("of %s %q to %s %q", b.ref.Kind, b.ref.Name, kind, subject.name)
	if b.namespace == "" {
		return fmt.Sprintf("ClusterRoleBinding %q %s", b.name, text)
	}
	return fmt.Sprintf("RoleBinding %q %s", b.name+"/"+b.namespace, text)
}

// Allows reports whether a rule allows a request.
func Allows(a authorizer.Attributes, rule *rbacv1.PolicyRule) bool {
	if !contains(rule.Verbs, rbacv1.VerbAll, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(pattern string) bool { return pathMatches(pattern, a.GetPath()) })
	}
	return contains(rule.APIGroups, rbacv1.APIGroupAll, a.GetAPIGroup()) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool { return resourceMatches(pattern, a.GetResource(), a.GetSubresource()) }) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

func contains(values []string, all, value string) bool {
	return slices.Contains(values, all) || slices.Contains(values, value)
}

// resourceMatches matches a resource with a pattern: "*", "resource", "resource/subresource" or "*/subresource".
func resourceMatches(pattern, resource, subresource string) bool {
	if pattern == rbacv1.ResourceAll {
		return true
	}
	if subresource == "" {
		return pattern == resource
	}
	prefix, suffix, found := strings.Cut(pattern, "/")
	return found && suffix == subresource && (prefix == resource || prefix == "*")
}

// pathMatches matches a path with a pattern that may end in "*".
func pathMatches(pattern, path string) bool {
	if pattern == rbacv1.NonResourceAll || pattern == path {
		return true
	}
	return strings.HasSuffix(pattern, "*") && strings.HasPrefix(path, strings.TrimRight(pattern, "*"))
}
