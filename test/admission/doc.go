// Package admission tests admission in a whole cluster, with webhook servers, policies and quotas in several
// logical clusters at once.
package admission
