//! The states that a router shares with its handlers: at most one value of each type.

use std::any::Any;
use std::sync::Arc;

#[derive(Clone, Default)]
pub(crate) struct States(Vec<Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) const NONE: States = States(Vec::new());

    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        self.0.iter().find_map(|state| state.downcast_ref())
    }

    pub(crate) fn has<T: Any>(&self) -> bool {
        self.get::<T>().is_some()
    }

    /// Adds a state of an outer router, unless a state of its type is here.
    pub(crate) fn inherit(&mut self, state: &Arc<dyn Any + Send + Sync>) {
        if self.0.iter().all(|known| (**known).type_id() != (**state).type_id()) {
            self.0.push(state.clone());
        }
    }

    /// Adds the states of `outer` whose types are not here.
    pub(crate) fn inherit_all(&mut self, outer: &States) {
        for state in &outer.0 {
            self.inherit(state);
        }
    }
}
