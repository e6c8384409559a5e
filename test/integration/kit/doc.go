// Package kit contains what the packages of integration tests share: a running
// cluster with clients of its servers (Env), an administrator's client of one
// workspace (WorkspaceClient), users (People), and raw requests (Request).
package kit
