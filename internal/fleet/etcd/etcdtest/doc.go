// Package etcdtest has the tests of relays whose list of members is in etcd, with etcd itself.
package etcdtest
